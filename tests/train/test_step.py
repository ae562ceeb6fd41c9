"""A fast training step is the plain training step: same losses, same weights, and the model left as it was."""

import contextlib
import copy
import itertools
import types

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from rfwp.config import BlocksConfig, FWPConfig, LSTMConfig, SequenceConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.layers import Block
from rfwp.layers.state import detach, map_state
from rfwp.lm.carried import Carried, flat
from rfwp.models import SequenceModel
from rfwp.train import TrainStep, bucket
from rfwp.train.step import WARM_UP, Replay, hold_rates
from tests.tolerances import FLOAT64

LAYERS = {
    "linear_transformer": FWPConfig(rule="sum", phi="elu"),
    "delta_net": FWPConfig(),
    "delta_rnn": FWPConfig(fast="rnn"),
    "rdn": FWPConfig(slow="recurrent", phi="softmax"),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def make(layer="delta_net", layers=3, dropout=0.0, dtype=torch.float64, lr=1e-2):
    torch.manual_seed(0)
    core = BlocksConfig(LAYERS[layer], width=8, layers=layers, heads=2, ff=16, dropout=dropout)
    model = SequenceModel(SequenceConfig(5, 7, core, embedding=8)).to(dtype)
    return model, torch.optim.Adam(model.parameters(), lr=lr, fused=True)


def test_a_step_whose_gradients_overflow_changes_nothing_and_is_counted():
    """Once by entries that are not finite, once by a norm that is too large for its numbers."""
    data, (one, other) = batches(n=4), (make(dtype=torch.float32) for _ in range(2))
    scales = {1: float("inf"), 2: 1e30}
    step = TrainStep(*one, lambda model, x, y, scale: loss_of(model, x, y) * scale, clip=0.25)
    for n, batch in enumerate(data):
        step(*batch, torch.tensor(scales.get(n, 1.0)))
    plain_losses(*other, [data[0], data[3]], clip=0.25)
    for ours, expected in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    for ours, expected in zip(one[1].state.values(), other[1].state.values(), strict=True):
        for name in expected:
            torch.testing.assert_close(ours[name], expected[name], rtol=0, atol=0)
    assert (step.left_out(), step.left_out()) == (2, 0)


def loss_of(model, tokens, targets):
    return model.loss(tokens, targets)[0]


def batches(T=7, n=4):
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(0, size, (2, T), generator=generator) for size in (5, 7)) for _ in range(n)]


def plain_losses(model, optimiser, data, clip=None):
    losses = []
    for tokens, targets in data:
        optimiser.zero_grad()
        loss = loss_of(model, tokens, targets)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def assert_same_training(model, other):
    for ours, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, **FLOAT64)


@pytest.mark.parametrize(("layer", "region"), [*itertools.product(LAYERS, ("no", "blocks")), ("rdn", "model")])
def test_step_gives_the_losses_and_weights_of_the_plain_step(layer, region):
    (model, optimiser), (other, plain) = make(layer), make(layer)
    step = TrainStep(model, optimiser, loss_of, compile=region, clip=0.5, compiler="aot_eager")
    losses = torch.stack([step(*batch) for batch in batches()])
    torch.testing.assert_close(losses, plain_losses(other, plain, batches(), clip=0.5), **FLOAT64)
    assert_same_training(model, other)
    assert losses[-1] != losses[0]


@pytest.mark.parametrize("region", ["no", "blocks"])
def test_padding_to_a_bucket_changes_no_loss_and_no_gradient(region):
    (model, optimiser), (other, plain) = make("rdn"), make("rdn")
    step = TrainStep(model, optimiser, loss_of, compile=region, pad=(0, -1), compiler="aot_eager")
    data = [batch for T in (1, 7, 33) for batch in batches(T, n=1)]
    losses = torch.stack([step(*batch) for batch in data])
    torch.testing.assert_close(losses, plain_losses(other, plain, data), **FLOAT64)
    assert_same_training(model, other)


def test_all_blocks_share_one_graph_and_every_bucket_has_one():
    graphs = CompileCounterWithBackend("aot_eager")
    model, optimiser = make(layers=12)
    step = TrainStep(model, optimiser, loss_of, compile="blocks", pad=(0, -1), compiler=graphs)
    for T in (33, 34, 40):
        step(*batches(T, n=1)[0])
    assert graphs.frame_count == 1
    for T in (41, 47):
        step(*batches(T, n=1)[0])
    assert graphs.frame_count == 2


def test_more_buckets_than_pytorch_would_compile_by_itself():
    graphs = CompileCounterWithBackend("eager")
    model, optimiser = make(layers=1)
    step = TrainStep(model, optimiser, loss_of, compile="blocks", compiler=graphs)
    for T in range(1, 11):
        step(*batches(T, n=1)[0])
    assert graphs.frame_count == 10


@pytest.mark.parametrize("layer", LAYERS)
def test_all_lengths_share_one_graph_and_give_the_same_losses(layer):
    graphs = CompileCounterWithBackend("aot_eager")
    model, optimiser = make(layer)
    data = [batches(T, n=1)[0] for T in (33, 48, 70, 33, 57)]
    other, plain = make(layer)
    step = TrainStep(model, optimiser, loss_of, compile="lengths", compiler=graphs)
    losses = torch.stack([step(*batch) for batch in data])
    torch.testing.assert_close(losses, plain_losses(other, plain, data), **FLOAT64)
    assert graphs.frame_count == 1


def test_outside_of_steps_the_model_is_not_compiled():
    model, optimiser = make()
    step = TrainStep(model, optimiser, loss_of, compile="blocks", compiler="aot_eager")
    step(*batches()[0])
    assert all("forward" not in vars(m) for m in model.modules() if isinstance(m, Block))


def test_an_lstm_is_never_unrolled_by_the_compiler():
    graphs = CompileCounterWithBackend("aot_eager")
    model = SequenceModel(SequenceConfig(5, 7, LSTMConfig(8), embedding=8))
    step = TrainStep(model, torch.optim.Adam(model.parameters()), loss_of, compile=True, compiler=graphs)
    assert step(*batches()[0]).isfinite()
    assert graphs.frame_count == 0


def test_dropout_differs_from_step_to_step():
    model, _ = make(dropout=0.5)
    still = torch.optim.Adam(model.parameters(), lr=0.0)
    step = TrainStep(model, still, loss_of, compile="blocks", compiler="aot_eager")
    batch = batches()[0]
    assert len({step(*batch).item() for _ in range(5)}) == 5


def test_bf16_keeps_weights_and_gradients_in_float32():
    model, optimiser = make("rdn", dtype=torch.float32)
    loss = TrainStep(model, optimiser, loss_of, precision="bf16")(*batches()[0])
    assert loss.isfinite()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


def test_switches_for_tf32_are_put_back():
    model, optimiser = make()
    seen = []

    def loss(model, *batch):
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return loss_of(model, *batch)

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for precision in ("fp32", "tf32"):
        TrainStep(model, optimiser, loss, precision=precision)(*batches()[0])
        assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    assert seen == [("highest", False), ("high", True)]


def test_learning_rates_and_counts_move_to_tensors_for_a_recording():
    model, optimiser = make()
    plain_losses(model, optimiser, batches(n=2))
    (rate,) = hold_rates(optimiser, torch.device("cpu"))
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(1e-2)
    assert all(state["step"].item() == 2 for state in optimiser.state.values())
    assert plain_losses(model, optimiser, batches(n=1)).isfinite().all()


class FakeGraph:
    """What a CUDA graph does, on the CPU: recording runs nothing, a replay runs what was recorded on the same buffers."""

    replays = 0

    def replay(self):
        FakeGraph.replays += 1
        self.loss.copy_(self.step(*self.inputs))


class FakeCUDA:
    """Stands in for torch.cuda while `model` is trained by `replay`."""

    def __init__(self, monkeypatch, model, optimiser, state=()):
        self.model, self.optimiser, self.state = model, optimiser, state
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        for name, stand_in in {
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda stream: contextlib.nullcontext(),
            "graph_pool_handle": lambda: None,
            "CUDAGraph": FakeGraph,
            "graph": self.recording,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    @contextlib.contextmanager
    def recording(self, graph, **_):
        assert all(p.grad is None for p in self.model.parameters())
        before = copy.deepcopy((self.model.state_dict(), self.optimiser.state_dict(), self.state))
        rates = [group["lr"] for group in self.optimiser.param_groups]
        yield
        self.model.load_state_dict(before[0])
        self.optimiser.load_state_dict(before[1])
        for tensor, old in zip(self.state, before[2], strict=True):
            tensor.copy_(old)
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate


def fake_replays(monkeypatch, optimiser, step):
    """A Replay of the step whose graphs are fake."""
    record = Replay._record

    def recorded(self, recording):
        record(self, recording)
        recording.graph.step, recording.graph.inputs, recording.graph.loss = self.step, recording.inputs, recording.loss

    monkeypatch.setattr(Replay, "_record", recorded)
    monkeypatch.setattr(FakeGraph, "replays", 0)
    return Replay(torch.device("cpu"), optimiser, step._step)


def test_replays_train_as_plain_steps_do_while_lengths_and_learning_rates_change(monkeypatch):
    # learning rates that float32 holds exactly, as recordings keep them in it
    (model, optimiser), (other, plain) = make(lr=2**-7), make(lr=2**-7)
    FakeCUDA(monkeypatch, model, optimiser)
    replay = fake_replays(monkeypatch, optimiser, TrainStep(model, optimiser, loss_of))
    data = [batch for pair in zip(batches(7, 6), batches(9, 6), strict=True) for batch in pair]
    losses = []
    for n, batch in enumerate(data):
        for opt in (optimiser, plain):
            if n == 8:
                opt.param_groups[0]["lr"] = 2**-10
        losses.append((replay(*batch), *plain_losses(other, plain, [batch])))
    ours, expected = (torch.stack(side) for side in zip(*losses, strict=True))
    torch.testing.assert_close(ours, expected, **FLOAT64)
    assert_same_training(model, other)
    assert FakeGraph.replays == 12 - 2 * WARM_UP
    assert len(replay.recordings) == 2


@pytest.mark.parametrize("T", [1, 7, 8, 33, 70, 450, 4096, 65_535])
def test_buckets_hold_their_length_and_waste_an_eighth_at_most(T):
    assert T <= bucket(T) < T + max(8, T / 8)
    assert bucket(bucket(T)) == bucket(T)


def test_buckets_are_few():
    assert len({bucket(T) for T in range(1, 513)}) == 32
    assert [bucket(T) for T in (1, 9, 129, 450, 513)] == [8, 16, 144, 480, 576]


def test_bad_settings_are_named():
    model, optimiser = make()
    with pytest.raises(UnknownName, match="unknown precision 'bf61'; did you mean 'bf16'"):
        TrainStep(model, optimiser, loss_of, precision="bf61")
    with pytest.raises(UnknownName, match="unknown region to compile 'block'; did you mean 'blocks'"):
        TrainStep(model, optimiser, loss_of, compile="block")
    with pytest.raises(InvalidInput, match=r"clip=0.0 would stop all learning"):
        TrainStep(model, optimiser, loss_of, clip=0.0)
    with pytest.raises(InvalidInput, match="needs a model on a GPU, this one is on cpu; use cuda_graph=False"):
        TrainStep(model, optimiser, loss_of, cuda_graph=True)
    with pytest.raises(InvalidInput, match="SGD cannot be recorded in a CUDA graph; use Adam or AdamW"):
        hold_rates(torch.optim.SGD(model.parameters(), lr=1.0), torch.device("cpu"))
    with pytest.raises(InvalidInput, match=r"bucket: T=0"):
        bucket(0)


def test_bad_batches_and_losses_are_named():
    model, optimiser = make()
    tokens, targets = batches()[0]
    with pytest.raises(InvalidInput, match="pad has 1 values for 2 tensors"):
        TrainStep(model, optimiser, loss_of, pad=(0,))(tokens, targets)
    with pytest.raises(InvalidInput, match=r"pad needs tensors of \(B, T\), saw one of \(2,\)"):
        TrainStep(model, optimiser, loss_of, pad=(0, -1))(tokens, targets[:, 0])
    with pytest.raises(InvalidInput, match=r"loss_fn gave a tensor \(2, 7, 7\), expected one number"):
        TrainStep(model, optimiser, lambda model, tokens, targets: model(tokens)[0])(tokens, targets)
    with pytest.raises(InvalidInput, match="loss_fn gave a tuple, expected one number"):
        TrainStep(model, optimiser, lambda model, tokens, targets: model.loss(tokens, targets))(tokens, targets)


# --- Parts of a batch ---


def share(model, tokens, targets, total):
    return model.loss(tokens, targets)[0] * ((targets != -1).sum().double() / total)


@pytest.mark.parametrize("region", ["no", "blocks"])
def test_parts_of_a_batch_add_up_to_the_whole(region):
    (model, optimiser), (other, plain) = make(), make()
    step = TrainStep(model, optimiser, share, parts=2, clip=0.5, compile=region, compiler="aot_eager")
    data = batches()
    for _, targets in data:
        # the parts have different numbers of targets
        targets[0, 2:] = -1
    losses = torch.stack([step(x, y, (y != -1).sum()) for x, y in data])
    torch.testing.assert_close(losses, plain_losses(other, plain, data, clip=0.5), **FLOAT64)
    assert_same_training(model, other)


def test_reduce_comes_between_gradients_and_clipping():
    (model, optimiser), (other, plain) = make(), make()

    def double():
        for p in model.parameters():
            p.grad *= 1000

    step = TrainStep(model, optimiser, loss_of, clip=1e-3, reduce=double)
    torch.stack([step(*batch) for batch in batches()])
    # gradients a thousand times as long are clipped to the same
    plain_losses(other, plain, batches(), clip=1e-3)
    for ours, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_rows_that_cannot_be_cut_are_named():
    model, optimiser = make()
    with pytest.raises(InvalidInput, match="2 rows cannot be cut into 3 equal parts"):
        TrainStep(model, optimiser, loss_of, parts=3)(*batches()[0])
    with pytest.raises(InvalidInput, match="parts=0"):
        TrainStep(model, optimiser, loss_of, parts=0)


def carried_loss(nesting, shares=1):
    """The mean loss of some rows that go on from a state, and the state after them."""

    def loss_fn(model, tokens, targets, state):
        left = iter(state)
        loss, new = model.loss(tokens, targets, map_state(lambda _: next(left), nesting))
        return loss / shares, flat(new)

    return loss_fn


def plain_carried_losses(model, optimiser, data):
    losses, state = [], None
    for tokens, targets in data:
        optimiser.zero_grad()
        loss, state = model.loss(tokens, targets, state)
        state = detach(state)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses), flat(state)


@pytest.mark.parametrize(("parts", "region"), [(1, "no"), (2, "no"), (1, "blocks")])
def test_a_state_goes_from_step_to_step_without_its_gradient_and_stays_in_place(parts, region):
    (model, optimiser), (other, plain) = make("delta_rnn"), make("delta_rnn")
    carried = Carried(model, 2, torch.device("cpu"))
    places = [tensor.data_ptr() for tensor in carried.tensors]
    loss_fn = carried_loss(carried.nesting, parts)
    options = {"parts": parts, "compile": region, "compiler": "aot_eager"}
    step = TrainStep(model, optimiser, loss_fn, state=carried.tensors, **options)
    losses = torch.stack([step(*batch) for batch in batches()])
    expected, state = plain_carried_losses(other, plain, batches())
    torch.testing.assert_close(losses, expected, **FLOAT64)
    torch.testing.assert_close(carried.tensors, state, **FLOAT64)
    assert_same_training(model, other)
    assert [tensor.data_ptr() for tensor in carried.tensors] == places
    assert not any(tensor.requires_grad for tensor in carried.tensors)


def test_replays_find_the_state_where_the_step_before_has_left_it(monkeypatch):
    (model, optimiser), (other, plain) = make("rdn", lr=2**-7), make("rdn", lr=2**-7)
    carried = Carried(model, 2, torch.device("cpu"))
    FakeCUDA(monkeypatch, model, optimiser, carried.tensors)
    step = TrainStep(model, optimiser, carried_loss(carried.nesting), state=carried.tensors)
    replay = fake_replays(monkeypatch, optimiser, step)
    data = batches(n=WARM_UP + 4)
    losses = torch.stack([replay(*batch) for batch in data])
    expected, state = plain_carried_losses(other, plain, data)
    torch.testing.assert_close(losses, expected, **FLOAT64)
    torch.testing.assert_close(carried.tensors, state, **FLOAT64)
    assert FakeGraph.replays == 4
