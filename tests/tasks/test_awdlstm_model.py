"""The AWD-LSTM against torch's own LSTM layers and plain restatements of its dropouts."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from stand_in_gpu import CUDA, Gpu
from torch import nn

from mlbench.config.compose import compose
from mlbench.tasks.awdlstm import Config, Dropouts
from mlbench.tasks.awdlstm.model import AwdLstm, LanguageModelOutput, WeightDropLSTM, keep, loss
from mlbench.tasks.awdlstm.torch import flops_per_token, language_model

WORDS, EMBEDDING, HIDDEN = 17, 6, 10
NONE = Dropouts(output=0, hidden=0, input=0, embedding=0, recurrent=0)


def official(*overrides: str) -> Config:
    task = compose(["task=awdlstm", "scale=official", *overrides]).task
    assert isinstance(task, Config)
    return task


def generator(seed: int = 3, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def small(**drop: float) -> AwdLstm:
    torch.manual_seed(1)
    dropouts = NONE.model_copy(update=drop)
    return AwdLstm(WORDS, embedding=EMBEDDING, hidden=HIDDEN, layers=3, dropouts=dropouts)


def tokens(length: int = 9, columns: int = 4, seed: int = 5) -> torch.Tensor:
    return torch.randint(WORDS, (length, columns), generator=generator(seed))


def torch_layers(model: AwdLstm) -> list[nn.LSTM]:
    """Return the model's layers as torch's own, with the same weights."""
    widths = [EMBEDDING, HIDDEN, HIDDEN, EMBEDDING]
    layers = [nn.LSTM(inputs, width) for inputs, width in zip(widths, widths[1:], strict=False)]
    for ours, theirs in zip(model.layers, layers, strict=True):
        theirs.load_state_dict(ours.state_dict())
    return layers


# Size


@pytest.mark.parametrize("recipe", ["mlbench2020", "mlbench-gpu"])
def test_the_official_model_has_as_many_parameters_as_its_closed_form(recipe):
    config = official(f"task.recipe={recipe}")
    with torch.device("meta"):
        model = language_model(config, 33_278)
    words = 33_278 * (400 + 1)  # tied input and output words, and a bias each
    layers = sum(4 * out * (inputs + out + 2) for inputs, out in [(400, 1150), (1150, 1150), (1150, 400)])
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == words + layers == 33_556_078  # 33.56 M


def test_training_flops_equal_the_closed_form():
    config = official("division=open", "task.bptt=7")
    recurrent = sum(4 * out * out for out in (1150, 1150, 400))
    weights = 4 * (1150 * 400 + 1150 * 1150 + 400 * 1150) + recurrent + 400 * 33_278
    without = 2 * recurrent / 7  # nothing flows into the state that a chunk begins with
    assert flops_per_token(config, 33_278) == pytest.approx(6 * weights - without, rel=1e-12)


# Without dropout


def test_outputs_states_and_gradients_equal_those_of_torch_lstm():
    model, text = small(), tokens()
    layers, words = torch_layers(model), model.words.detach().clone().requires_grad_()
    start = [(torch.randn(1, 4, w), torch.randn(1, 4, w)) for w in (HIDDEN, HIDDEN, EMBEDDING)]
    output = model(text, start)
    x = F.embedding(text, words)
    for layer, state, after in zip(layers, start, output.states, strict=True):
        x, (hidden, cell) = layer(x, state)
        torch.testing.assert_close((hidden, cell), after)
    logits = x @ words.T + model.bias.detach()
    torch.testing.assert_close(output.logits, logits)
    assert output.raw is output.dropped
    (output.logits * torch.arange(WORDS)).sum().backward()
    (logits * torch.arange(WORDS)).sum().backward()
    torch.testing.assert_close(model.words.grad, words.grad)
    for ours, theirs in zip(model.layers, layers, strict=True):
        for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad)


# With dropout


def masked(layer: WeightDropLSTM, drop: float, seed: int) -> tuple[nn.LSTM, torch.Tensor]:
    """Return torch's layer with the recurrent weights masked by hand, and the mask."""
    mask = torch.empty_like(layer.weight_hh_l0).bernoulli_(1 - drop, generator=generator(seed)) / (1 - drop)
    theirs = nn.LSTM(layer.weight_ih_l0.shape[1], layer.weight_hh_l0.shape[1])
    theirs.load_state_dict({**layer.state_dict(), "weight_hh_l0": layer.weight_hh_l0.detach() * mask})
    return theirs, mask


def test_recurrent_weights_are_dropped_for_the_whole_piece_and_learn_through_the_mask():
    layer, x = WeightDropLSTM(EMBEDDING, HIDDEN, drop=0.5), torch.randn(7, 3, EMBEDDING)
    theirs, mask = masked(layer, 0.5, seed=8)
    assert isinstance(theirs.weight_hh_l0, nn.Parameter)
    assert 0.3 < (mask == 0).float().mean() < 0.7
    ours, _ = layer(x, None, generator(8))
    expected, _ = theirs(x)
    torch.testing.assert_close(ours, expected)
    ours.square().sum().backward()
    expected.square().sum().backward()
    gradient = theirs.weight_hh_l0.grad
    assert gradient is not None
    torch.testing.assert_close(layer.weight_hh_l0.grad, gradient * mask)
    torch.testing.assert_close(layer.weight_ih_l0.grad, theirs.weight_ih_l0.grad)


def test_every_piece_drops_other_weights_and_evaluation_none():
    layer, x, dropout_rng = (
        WeightDropLSTM(EMBEDDING, HIDDEN, drop=0.5),
        torch.randn(7, 3, EMBEDDING),
        generator(),
    )
    first, second = layer(x, None, dropout_rng)[0], layer(x, None, dropout_rng)[0]
    assert not torch.equal(first, second)
    theirs, _ = masked(layer, 0.0, seed=0)
    torch.testing.assert_close(layer.eval()(x, None, None)[0], theirs(x)[0])


def test_locked_dropout_drops_the_same_units_of_a_column_at_every_token():
    model = small().train()
    mask = model.locked(torch.ones(50, 8, 200), 0.4, generator())
    assert torch.equal(mask, mask[:1].expand_as(mask))
    assert mask.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert (mask[0] == 0).float().mean() == pytest.approx(0.4, abs=0.03)
    assert not torch.equal(mask[0, 0], mask[0, 1])


def test_embedding_dropout_drops_a_word_at_all_its_places():
    model, seen = small(embedding=0.4), {}
    model.locked = lambda x, drop, dropout_rng: seen.setdefault("x", x)  # what comes out of the words
    text = tokens(40, 6)
    model(text, None, generator(9))
    rows = keep(model.words, (WORDS, 1), 0.4, generator(9))
    assert 0 < (rows == 0).sum() < WORDS
    torch.testing.assert_close(seen["x"], F.embedding(text, model.words * rows))


def test_output_dropout_goes_to_the_words_and_leaves_raw_as_it_is():
    model, plain = small(output=0.5), small()
    output, expected = model(tokens(), None, generator()), plain(tokens())
    torch.testing.assert_close(output.raw, expected.raw)
    mask = keep(output.raw, (1, *output.raw.shape[1:]), 0.5, generator())
    torch.testing.assert_close(output.dropped, expected.raw * mask)
    torch.testing.assert_close(output.logits, output.dropped @ model.words.T + model.bias)


# Loss


def test_the_loss_is_cross_entropy_with_both_regularisations():
    logits, raw, dropped = torch.randn(6, 4, WORDS), torch.randn(6, 4, 5), torch.randn(6, 4, 5)
    targets = tokens(6, 4)
    expected = 0.0
    for row in range(6):
        for column in range(4):
            p = logits[row, column].double().softmax(0)[targets[row, column]]
            expected -= p.log().item() / 24
            expected += 2 * dropped[row, column].double().square().mean().item() / 24
            if row:
                change = (raw[row, column] - raw[row - 1, column]).double()
                expected += 3 * change.square().mean().item() / 20
    result = loss(LanguageModelOutput(logits, raw, dropped, []), targets, ar=2, tar=3)
    assert result.item() == pytest.approx(expected, rel=1e-5)


# GPU


def test_a_gpu_gets_the_weights_in_one_piece_in_their_order(monkeypatch):
    """What cuDNN would otherwise copy at every call, with a warning, on a stand-in that computes the same."""
    layer, x = WeightDropLSTM(EMBEDDING, HIDDEN, drop=0.5), torch.randn(7, 3, EMBEDDING)
    expected, _ = layer(x, None, generator(8))
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    places, lstm = [], torch.lstm

    def watched(x, state, weights, *options):
        places.extend((weight.data_ptr(), 4 * weight.numel()) for weight in weights)
        return lstm(x, state, weights, *options)

    monkeypatch.setattr(torch, "lstm", watched)
    with Gpu():
        output, _ = layer(x.to(CUDA), None, generator(8))
    output.square().sum().backward()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close([parameter.grad for parameter in layer.parameters()], gradients)
    assert len(places) == 4
    assert [place for place, _ in places[1:]] == [place + size for place, size in places[:-1]]


@pytest.mark.gpu
@pytest.mark.parametrize(("embedding", "hidden"), [(EMBEDDING, HIDDEN), (400, 1150)])
def test_cudnn_finds_the_weights_in_one_piece_and_agrees_with_the_cpu(embedding, hidden):
    torch.manual_seed(2)
    dropouts = NONE.model_copy(update={"recurrent": 0.5})
    model = AwdLstm(WORDS, embedding=embedding, hidden=hidden, layers=3, dropouts=dropouts)
    text = tokens()
    expected = model.eval()(text).logits
    model.cuda()
    with warnings.catch_warnings(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        warnings.simplefilter("error")  # cuDNN's warning about weights that are scattered in memory
        torch.testing.assert_close(model(text.cuda()).logits.cpu(), expected, atol=1e-4, rtol=1e-4)
        output = model.train()(text.cuda(), None, generator(device="cuda"))
        loss(output, text.cuda(), ar=2, tar=1).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
