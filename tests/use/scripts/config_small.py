batch_size = 4
eval_interval = 20
