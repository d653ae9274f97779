"""The AWD-LSTM with SGD, later with its average, until the goal or the last epoch."""

from functools import partial

import torch

from mlbench.tasks.awdlstm import Config, Dropouts, bptt, data
from mlbench.tasks.awdlstm import model as awd
from mlbench.tasks.awdlstm.nt_asgd import Averaging
from mlbench.training import precision
from mlbench.training.flops import training_flops
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains."""
    precision.require_lstm(config.precision, worker.device)
    files = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = language_model(config, files.vocabulary).to(worker.device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    mixed = precision.on_device(config.precision, worker.device)
    averaging = Averaging(model, patience=config.patience)
    columns = bptt.columns(files.train, worker, each=config.batch_size)
    reader = bptt.BpttIterator(columns, config.bptt, worker)

    def load() -> bptt.TextValidation:
        """Read both texts onto the device."""
        reader.load()
        return bptt.validation(files.valid, worker, count=config.validation_columns, bptt=config.bptt)

    def before_step(_: int) -> None:
        now = bptt.rate(
            reader.position,
            reader.length,
            base=config.lr,
            bptt=config.bptt,
            workers=worker.world_size,
            warmup=config.warmup_epochs,
        )
        for group in optimizer.param_groups:
            group["lr"] = now

    return TrainingSetup(
        model=model,
        optimizer=optimizer,
        epochs=config.epochs,
        load=load,
        steps=lambda _, epoch: reader.steps(epoch),
        forward=reader.forward,
        loss=lambda output, chunk: awd.loss(output, chunk.targets, ar=config.ar, tar=config.tar),
        validate=lambda trained, valid: valid(trained) | mixed.metrics(),
        samples=lambda chunk: chunk.inputs.numel(),
        sample_unit="tokens",
        before_step=before_step,
        after_validation=averaging.after_validation,
        optimizer_step=partial(mixed.clipped_step, optimizer, config.max_grad_norm),
        after_step=averaging.after_step,
        validation_weights=averaging.validation_weights,
        autocast=mixed.autocast,
        scaler=mixed.scaler,
        stateful={"averaging": averaging},
        flops_per_sample=lambda _: flops_per_token(config, files.vocabulary),
    )


def language_model(config: Config, vocabulary: int) -> awd.AwdLstm:
    """Return the untrained model that `config` describes."""
    return awd.AwdLstm(
        vocabulary,
        embedding=config.embedding,
        hidden=config.hidden,
        layers=config.layers,
        dropouts=config.dropouts,
    )


def flops_per_token(config: Config, vocabulary: int) -> float:
    """Return the model FLOPs of one token in a chunk of `bptt` tokens (see `training_flops`).

    That is 6 a weight of the layers and of the output words. It leaves out the gradient of the first token's
    state, at which back-propagation is truncated. Looking up the input words is no arithmetic.
    """
    none = Dropouts(output=0, hidden=0, input=0, embedding=0, recurrent=0)
    plain = config.model_copy(update={"dropouts": none})  # which need a generator, and are no model FLOPs
    with torch.device("meta"):
        model = language_model(plain, vocabulary)
        tokens = torch.zeros(config.bptt, 1, dtype=torch.int64)
    return training_flops(model, [tokens], lambda output: output.logits.sum(), samples=config.bptt)
