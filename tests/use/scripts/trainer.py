"""transformers' Trainer with worker processes of the DataLoader and an evaluation each epoch."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback


def main():
    torch.manual_seed(0)
    rows = [{"input_ids": torch.arange(8) % 4, "labels": torch.arange(8) % 4} for _ in range(32)]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        dataloader_num_workers=2,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8])
    trainer.remove_callback(PrinterCallback)  # its lines have seconds
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            print(f"epoch {entry['epoch']:.0f} eval_loss {entry['eval_loss']:.6f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
