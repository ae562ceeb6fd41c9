"""Properties of every composition: the zoo's, and the ones that the paper never names."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rfwp.errors import InvalidInput
from rfwp.fwp import ZOO, Composition
from rfwp.fwp.fast import FAST, LSTM, RNN
from rfwp.fwp.rules import RULES
from rfwp.fwp.slow import SLOW, Recurrent
from rfwp.layers.fwp import FWP
from tests.tolerances import FLOAT64

B, T, WIDTH, HEADS = 3, 11, 6, 2

UNNAMED = [
    Composition(slow, rule, fast, phi)
    for slow, rule, fast, phi in itertools.product(SLOW, RULES, FAST, ["softmax"])
    if Composition(slow, rule, fast, phi) not in ZOO.values()
]
EVERY = [*ZOO.values(), *UNNAMED]


def name_of(composition):
    return next((name for name, c in ZOO.items() if c == composition), str(composition))


every = pytest.mark.parametrize("composition", EVERY, ids=name_of)
zoo = pytest.mark.parametrize("composition", list(ZOO.values()), ids=name_of)


def layer_and_input(composition, **options):
    torch.manual_seed(0)
    layer = FWP(composition, WIDTH, HEADS, dtype=torch.float64, **options)
    return layer, torch.randn(B, T, WIDTH, dtype=torch.float64, requires_grad=True)


def random_state(layer, batch=B):
    return {name: torch.rand_like(s).requires_grad_() for name, s in layer.initial_state(batch).items()}


def assert_same_state(one, other):
    assert set(one) == set(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], **FLOAT64)


def some_resets():
    reset = torch.rand(B, T) < 0.3
    reset[0, 0] = reset[1, 5] = True
    reset[2] = False
    return reset


@every
def test_ops_give_what_the_generic_scan_gives(composition):
    layer, x = layer_and_input(composition)
    reference, _ = layer_and_input(composition, backend="reference")
    assert reference.plan == "scan"
    results = []
    for module in (layer, reference):
        torch.manual_seed(1)
        state, reset = random_state(module), some_resets()
        y, last = module(x, state, reset)
        leaves = [x, *state.values(), *module.parameters()]
        total = (y * torch.randn_like(y)).sum() + sum((last[n] * torch.randn_like(last[n])).sum() for n in sorted(last))
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        results.append((y, *(last[n] for n in sorted(last)), *gradients))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, **FLOAT64)


@every
def test_a_sequence_split_anywhere_equals_the_whole(composition):
    layer, x = layer_and_input(composition)
    reset = some_resets()
    whole, final = layer(x, None, reset)
    for t in (1, 5, T - 1):
        first, state = layer(x[:, :t], None, reset[:, :t])
        second, state = layer(x[:, t:], state, reset[:, t:])
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole, **FLOAT64)
        assert_same_state(state, final)


@zoo
def test_gradients_flow_through_a_split(composition):
    layer, x = layer_and_input(composition)
    (whole,) = torch.autograd.grad(layer(x)[0][:, -1].square().sum(), x)
    _, state = layer(x[:, :4])
    (split,) = torch.autograd.grad(layer(x[:, 4:], state)[0][:, -1].square().sum(), x)
    torch.testing.assert_close(split, whole, **FLOAT64)
    assert whole[:, 0].abs().sum() > 0


@every
def test_a_reset_is_a_fresh_start(composition):
    layer, x = layer_and_input(composition)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, 4] = True
    y, state = layer(x, random_state(layer), reset)
    fresh, fresh_state = layer(x[:, 4:])
    torch.testing.assert_close(y[:, 4:], fresh, **FLOAT64)
    assert_same_state(state, fresh_state)


@every
def test_step_by_step_equals_the_whole(composition):
    layer, x = layer_and_input(composition)
    reset, state = some_resets(), random_state(layer)
    whole, final = layer(x, state, reset)
    outputs = []
    for t in range(T):
        y, state = layer.step(x[:, t], state, reset[:, t])
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, dim=1), whole, **FLOAT64)
    assert_same_state(state, final)


@zoo
def test_step_trains(composition):
    layer, x = layer_and_input(composition)
    state, total = None, x.new_zeros(())
    for t in range(T):
        y, state = layer.step(x[:, t], state)
        total = total + y.square().sum()
    stepped = torch.autograd.grad(total, list(layer.parameters()))
    whole = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    for ours, expected in zip(stepped, whole, strict=True):
        torch.testing.assert_close(ours, expected, **FLOAT64)


@every
def test_outputs_depend_on_no_later_input_and_on_no_other_row(composition):
    layer, x = layer_and_input(composition)
    y, _ = layer(x)
    (gradient,) = torch.autograd.grad(y[1, 5].sum(), x)
    assert gradient[1, 5].abs().sum() > 0
    assert gradient[1, 6:].abs().sum() == 0
    assert gradient[[0, 2]].abs().sum() == 0


@zoo
def test_gradcheck(composition):
    torch.manual_seed(0)
    layer = FWP(composition, 4, 2, dtype=torch.float64)
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    reset = torch.tensor([[False, False, True, False], [False, False, False, False]])
    state = random_state(layer, 2)

    def run(x, *tensors):
        y, last = layer(x, dict(zip(state, tensors, strict=True)), reset)
        return y, *last.values()

    assert torch.autograd.gradcheck(run, (x, *state.values()))


@every
def test_every_live_parameter_gets_a_gradient_and_a_step_downhill_helps(composition):
    layer, x = layer_and_input(composition)
    target = torch.randn(B, T, WIDTH, dtype=torch.float64)
    loss = (layer(x)[0] - target).square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    with torch.no_grad():
        for p in layer.parameters():
            p -= 1e-3 * p.grad
    assert (layer(x)[0] - target).square().mean() < loss


def test_recurrent_slow_net_with_zero_R_is_delta_net():
    rdn, x = layer_and_input("rdn")
    delta_net, _ = layer_and_input(Composition("feedforward", "delta", "linear", "softmax"))
    delta_net.load_state_dict({name: p for name, p in rdn.state_dict().items() if name != "slow.R"})
    with torch.no_grad():
        rdn.slow.R.zero_()
    torch.testing.assert_close(rdn(x)[0], delta_net(x)[0], **FLOAT64)


def test_delta_rnn_with_zero_recurrent_learning_rate_is_delta_net():
    rnn, x = layer_and_input("delta_rnn")
    net, _ = layer_and_input("delta_net")
    d = WIDTH // HEADS
    # the last output of a head is the recurrent learning rate before its sigmoid: make it sigmoid(-1000) = 0
    x = torch.cat([x[..., :-1], torch.ones_like(x[..., :1])], dim=-1)
    with torch.no_grad():
        W = rnn.slow.W.weight.view(HEADS, 5 * d + 2, WIDTH)
        W[:, -1] = 0
        W[:, -1, -1] = -1000
        net.slow.W.weight.copy_(torch.cat([W[:, : 3 * d], W[:, 5 * d : 5 * d + 1]], dim=1).flatten(0, 1))
        net.out.weight.copy_(rnn.out.weight)
    torch.testing.assert_close(rnn(x)[0], net(x)[0], **FLOAT64)


def test_delta_mlp_without_dead_weights_computes_the_same():
    authors, x = layer_and_input(Composition(fast="authors_mlp(blocks=2)", phi="elu_sum_eps"))
    live, _ = layer_and_input(Composition(fast="residual_mlp(blocks=2)", phi="elu_sum_eps"))
    outputs, used = authors.slow.outputs, authors.slow.live
    weights = authors.state_dict()
    weights["slow.W.weight"] = weights["slow.W.weight"].view(HEADS, outputs, WIDTH)[:, :used].flatten(0, 1)
    live.load_state_dict(weights)
    torch.testing.assert_close(authors(x)[0], live(x)[0], **FLOAT64)


@pytest.mark.parametrize("base", [RNN, LSTM])
def test_a_subclass_with_equations_of_its_own_is_not_taken_for_its_parent(base):
    class Mine(base):
        def step(self, cell):
            return super().step(cell).tanh()

    mine, x = layer_and_input(Composition(fast=Mine()))
    reference, _ = layer_and_input(Composition(fast=Mine()), backend="reference")
    assert mine.plan == "scan"
    torch.testing.assert_close(mine(x)[0], reference(x)[0], **FLOAT64)


def test_a_slow_net_of_unknown_weights_is_refused_and_one_of_known_weights_is_not():
    class Gated:
        title, feeds_back, own_state = "Gated", False, ()

        def __repr__(self):
            return "Gated()"

    class Named(Recurrent):
        title = "Named"

    with pytest.raises(
        InvalidInput, match=r"slow net Gated\(\); use one of: feedforward, recurrent, lstm, or replace layer.slow"
    ):
        FWP(Composition(slow=Gated()), WIDTH, HEADS)
    assert FWP(Composition(slow=Named()), WIDTH, HEADS).slow.R.shape[0] == HEADS


@pytest.mark.parametrize("fast", ["lstm(shared_query=True)", "mlp(depth=3, inner=2)", "residual_mlp(blocks=3)"])
def test_fields_of_a_fast_net_reach_the_ops(fast):
    ours, x = layer_and_input(Composition(fast=fast))
    reference, _ = layer_and_input(Composition(fast=fast), backend="reference")
    torch.testing.assert_close(ours(x)[0], reference(x)[0], **FLOAT64)


def test_normalised_linear_transformer_in_float16_outlives_the_range_of_its_sums():
    torch.manual_seed(0)
    layer, x = FWP("linear_transformer_normalised", 64, 2), torch.randn(1, 4096, 64)
    expected = layer(x)[0][:, -100:]
    y = layer.half()(x.half())[0][:, -100:].float()
    assert (y - expected).norm() < 5e-3 * expected.norm()


def test_the_state_given_is_left_alone():
    layer, x = layer_and_input("delta_lstm")
    state = random_state(layer)
    before = {name: s.detach().clone() for name, s in state.items()}
    layer(x, state, some_resets())
    assert_same_state(state, before)


def test_half_precision_keeps_its_state_in_float32():
    layer = FWP("delta_rnn", WIDTH, HEADS, dtype=torch.bfloat16)
    x = torch.randn(B, T, WIDTH, dtype=torch.bfloat16)
    y, state = layer(x)
    assert y.dtype == torch.bfloat16
    assert {s.dtype for s in state.values()} == {torch.float32}
    layer(x, state)[0].sum().backward()


@pytest.mark.parametrize("name", ZOO)
def test_autocast_runs_and_stays_close(name):
    torch.manual_seed(0)
    layer, x = FWP(name, 32, 4), torch.randn(2, 20, 32)
    expected, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = layer(x)
        layer(x, state)  # what went out can come in again
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert (y.float() - expected).norm() < 0.03 * expected.norm()


@every
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_states_under_autocast_are_float32_and_can_come_in_again(composition, backend):
    torch.manual_seed(0)
    layer, x = FWP(composition, WIDTH, HEADS, backend=backend), torch.randn(B, 3, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = layer(x)
        y, state = layer(x, state)
    assert y.dtype == torch.bfloat16
    assert {s.dtype for s in state.values()} == {torch.float32}


class LikeCUDA(TorchFunctionMode):
    """Autocast on CUDA runs these in float32; the CPU's leaves them as they come."""

    FLOAT32 = frozenset({"layer_norm", "softmax", "log_softmax", "sum", "pow", "exp", "log", "cumsum", "softplus", "norm"})

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = list(args), kwargs or {}
        if getattr(function, "__name__", "") in self.FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = [self.float32(a) for a in args], {name: self.float32(a) for name, a in kwargs.items()}
        return function(*args, **kwargs)

    def float32(self, given):
        return given.float() if isinstance(given, torch.Tensor) and given.dtype == torch.bfloat16 else given


@every
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_autocast_of_cuda_runs_too(composition, backend):
    torch.manual_seed(0)
    layer, x = FWP(composition, WIDTH, HEADS, backend=backend), torch.randn(B, 3, WIDTH)
    expected, _ = layer(x)
    with LikeCUDA(), torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = layer(x)
        layer(x, state)[0].float().sum().backward()
    assert {s.dtype for s in state.values()} == {torch.float32}
    assert (y.float() - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("composition", [ZOO["rdn"], ZOO["delta_mlp_residual"], Composition(slow="lstm")], ids=str)
def test_a_layer_from_the_meta_device_starts_as_a_new_one(composition):
    new, _ = layer_and_input(composition)
    empty = FWP(composition, WIDTH, HEADS, dtype=torch.float64, device="meta").to_empty(device="cpu")
    for parameter in empty.parameters():
        nn.init.constant_(parameter, float("nan"))
    torch.manual_seed(0)
    empty.reset_parameters()
    torch.testing.assert_close(dict(empty.state_dict()), dict(new.state_dict()), rtol=0, atol=0)


def test_a_feature_map_with_weights_trains_and_moves_with_the_layer():
    phi = nn.Sequential(nn.Linear(WIDTH // HEADS, WIDTH // HEADS), nn.Softmax(dim=-1))
    layer = FWP(Composition(phi=phi), WIDTH, HEADS).double()
    x = torch.randn(B, T, WIDTH, dtype=torch.float64)
    layer(x)[0].square().sum().backward()
    assert {id(p) for p in phi.parameters()} <= {id(p) for p in layer.parameters() if p.grad is not None}
    torch.testing.assert_close(copy.deepcopy(layer)(x)[0], layer(x)[0], **FLOAT64)


@pytest.mark.parametrize("slow", ["feedforward", "recurrent"])
def test_a_feature_map_with_weights_runs_in_half_precision_and_is_drawn_again(slow):
    phi = nn.Sequential(nn.Linear(WIDTH // HEADS, WIDTH // HEADS), nn.Softmax(dim=-1))
    layer = FWP(Composition(slow, phi=phi), WIDTH, HEADS)
    x, before = torch.randn(B, T, WIDTH), phi[0].weight.clone()
    expected = layer(x)[0]
    torch.testing.assert_close(layer.bfloat16()(x.bfloat16())[0].float(), expected, rtol=0.05, atol=0.05)
    layer.float().reset_parameters()
    assert not torch.equal(phi[0].weight, before)


def test_a_functional_call_differentiates_the_weights():
    layer, x = layer_and_input("rdn")
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    ours = torch.func.grad(lambda weights: torch.func.functional_call(layer, weights, (x,))[0].square().sum())(weights)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    torch.testing.assert_close(tuple(ours.values()), expected, **FLOAT64)


def test_repr_says_what_the_layer_is_and_how_it_runs():
    assert "Recurrent/Delta fast Linear Net, width=6, heads=2, plan=recurrent_delta" in repr(FWP("rdn", WIDTH, HEADS))
