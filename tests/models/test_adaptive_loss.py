"""The loss of the tied adaptive softmax against its plain definition, whatever the chunks, the clusters and the bounds."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rfwp.errors import InvalidInput
from rfwp.models import adaptive
from rfwp.models.adaptive import TiedAdaptive
from rfwp.models.adaptive_loss import _sizes, adaptive_nll, forward
from tests.models.language_models import language_model, random_tokens
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT64

V, D, N, CUTOFFS = 23, 6, 40, (5, 9, 20)
# which words the targets are drawn from; each stands for a way the clusters can be filled
TARGETS = {
    "all": range(V),
    "frequent": range(5),
    "one-cluster": range(9, 20),
    "one-word": [22],
    "two": [*range(5), *range(9, 20)],
}


def example(kind="all", ignored=0.3, dtype=torch.float64, n=N):
    torch.manual_seed(0)
    head = TiedAdaptive(V, D, CUTOFFS).to(dtype)
    torch.nn.init.normal_(head.bias)
    targets = torch.tensor(list(TARGETS[kind]))[torch.randint(0, len(TARGETS[kind]), (n,))]
    targets[torch.rand(n) < ignored] = -1
    return head, torch.randn(n, D, dtype=dtype, requires_grad=True), targets


def plain(head, hidden, targets):
    counted = targets >= 0
    return -head.log_prob(hidden)[counted].gather(1, targets[counted][:, None]).sum() / counted.sum().clamp(min=1)


def value_and_gradients(f, head, hidden, targets):
    value = f(head, hidden, targets)
    return value, *torch.autograd.grad(value, [hidden, *head.parameters()], allow_unused=True, materialize_grads=True)


def assert_plain(f, head, hidden, targets, tolerance=FLOAT64):
    ours, theirs = (value_and_gradients(g, head, hidden, targets) for g in (f, plain))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def loss(head, hidden, targets, **options):
    return head.loss(hidden, targets, **options)


@pytest.fixture
def small_chunks(monkeypatch):
    """One to seven rows a chunk: several of them, the last one short."""
    monkeypatch.setitem(adaptive.LOGITS, "cpu", 31)


@pytest.mark.parametrize("ignored", [0, 0.3, 1])
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.usefixtures("small_chunks")
def test_loss_and_gradients_are_those_of_the_definition(kind, ignored):
    assert_plain(loss, *example(kind, ignored))


def test_one_large_chunk_gives_the_same():
    assert_plain(loss, *example())


@pytest.mark.parametrize("capacity", [(N, N, N), None], ids=["bounds-of-all", "exact-bounds"])
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.usefixtures("small_chunks")
def test_fixed_shapes_give_the_same(kind, capacity):
    head, hidden, targets = example(kind)
    capacity = capacity or head.count(targets)
    assert_plain(lambda *x: loss(*x, capacity=capacity), head, hidden, targets)


def test_gradcheck():
    head, hidden, targets = example(n=4, ignored=0)
    targets[:3] = torch.tensor([7, -1, 21])

    def run(hidden, *weights):
        return adaptive_nll(hidden, *weights, targets, head.ends, None, torch.float64, 31, True)[0]

    weights = (head.embedding.weight, head.bias, head.cluster.weight, head.cluster.bias)
    assert torch.autograd.gradcheck(run, (hidden, *weights))


def test_second_derivatives_are_refused():
    head, hidden, targets = example()
    (gradient,) = torch.autograd.grad(head.loss(hidden, targets), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="that gradient has none"):
        torch.autograd.grad(gradient.square().sum(), hidden)


def test_ignored_rows_may_hold_anything():
    head, hidden, targets = example()
    bad = hidden.detach().masked_fill((targets < 0)[:, None], torch.nan).requires_grad_()
    ours, clean = (value_and_gradients(loss, head, x, targets) for x in (bad, hidden))
    assert all(torch.equal(a, b) for a, b in zip(ours, clean, strict=True))


def test_any_number_can_be_ignored():
    head, hidden, targets = example()
    torch.testing.assert_close(head.loss(hidden, targets.masked_fill(targets < 0, -7), ignore=-7), head.loss(hidden, targets))
    expected = head.loss(hidden, targets.masked_fill(targets == 3, -1))
    assert head.loss(hidden, targets, ignore=3) == expected != head.loss(hidden, targets)


def test_nll_is_minus_log_prob_of_each_target():
    head, hidden, targets = example(ignored=0)
    nll = head.nll(hidden.view(5, 8, D), targets.view(5, 8))
    assert not nll.requires_grad
    torch.testing.assert_close(nll.flatten(), -head.log_prob(hidden).gather(1, targets[:, None]).squeeze(1), **FLOAT64)


def test_count_is_the_number_of_targets_in_each_cluster():
    head = TiedAdaptive(V, D, CUTOFFS)
    assert head.count(torch.tensor([[-1, 0, 4, 5, 8], [8, 19, 20, 22, 9]])) == (3, 2, 2)


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        ((40, 40), "give one number for each of 3 clusters"),
        ((40, -1, 40), "give one number for each of 3 clusters"),
        ((40, 3, 40), "capacity=(40, 3, 40) is too small for (0, 40, 0) targets in the clusters"),
    ],
)
def test_bounds_that_do_not_fit_are_refused(capacity, message):
    with pytest.raises(InvalidInput) as caught:
        loss(*example("one-cluster", ignored=0), capacity=capacity)
    assert message in str(caught.value)


def test_bounds_that_nobody_can_check_make_nan_where_they_are_too_small():
    """A compiled graph looks at no values, as on a GPU."""
    head, hidden, targets = example("one-cluster")
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")

    def run(capacity):
        return value_and_gradients(lambda *x: compiled(*x, capacity=capacity), head, hidden, targets)

    assert all(x.isnan().all() for x in run((0, head.count(targets)[1] - 1, 0)))
    assert all(x.isfinite().all() for x in run((0, head.count(targets)[1], 0)))


@pytest.mark.parametrize(("hidden", "targets"), [((40, 5), (40,)), ((40, 6), (39,)), ((40, 6), (40, 1))])
def test_shapes_that_do_not_fit_are_refused(hidden, targets):
    with pytest.raises(InvalidInput, match="TiedAdaptive"):
        TiedAdaptive(V, D, CUTOFFS).loss(torch.zeros(hidden), torch.zeros(targets, dtype=torch.long))


@pytest.mark.usefixtures("small_chunks")
def test_float32_and_bfloat16():
    assert_plain(loss, *example(dtype=torch.float32), FLOAT32)
    assert_plain(loss, *example(dtype=torch.bfloat16), {"rtol": 0.03, "atol": 0.02})


def test_autocast_computes_products_in_half_and_keeps_sums_and_gradients_in_float32():
    head, hidden, targets = example(dtype=torch.float32)
    expected = value_and_gradients(plain, head, hidden, targets)
    with torch.autocast("cpu", torch.bfloat16):
        value = head.loss(hidden, targets)
    ours = value, *torch.autograd.grad(value, [hidden, *head.parameters()])
    for a, b in zip(ours, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, **BFLOAT16)
    assert not torch.allclose(ours[2], expected[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("keep", [True, False])
def test_passes_opcheck(keep):
    """But for the check that asks for gradients of all outputs: only the first has one."""
    head, hidden, targets = example()
    weights = [head.embedding.weight, head.bias, head.cluster.weight, head.cluster.bias]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    leaves = [x.detach().requires_grad_(keep) for x in (hidden, *weights)]
    torch.library.opcheck(adaptive_nll, (*leaves, targets, head.ends, None, torch.float64, 31, keep), test_utils=checks)


def test_compiles_in_one_graph_whatever_the_targets():
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for kind in TARGETS:
            assert_plain(compiled, *example(kind))


def test_compiles_under_autocast():
    head, hidden, targets = example(dtype=torch.float32)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(head, hidden, targets) == head.loss(hidden, targets)


class Allocations(TorchDispatchMode):
    """The number of elements of every tensor that is made, and the rows of every product."""

    def __init__(self):
        super().__init__()
        self.sizes, self.products = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.sizes += [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if func is torch.ops.aten.addmm.default:
            self.products.append(tuple(out.shape))
        return out


def body(head, hidden, targets, capacity=None, logits=600):
    weights = (head.embedding.weight, head.bias, head.cluster.weight, head.cluster.bias)
    with Allocations() as seen, torch.no_grad():
        forward(hidden, *weights, targets, head.ends, capacity, torch.float64, logits, True)
    return seen


def test_no_tensor_is_larger_than_a_chunk_of_logits_the_weights_or_the_inputs():
    torch.manual_seed(0)
    head = TiedAdaptive(200, D, (100, 150)).double()
    hidden = torch.randn(1000, D, dtype=torch.float64)
    for low, high in ((0, 200), (150, 200)):
        seen = body(head, hidden, torch.randint(low, high, (1000,)))
        assert max(seen.sizes) <= 1000 * D
        assert max(rows * words for rows, words in seen.products) <= 600


def test_clusters_cost_only_what_is_in_them():
    """The width of a product is the number of words, up to the next multiple of 8."""
    head, hidden, _ = example()
    seen = body(head, hidden, torch.tensor([1] * 30 + [21] * 10))
    assert seen.products == [(N, 8), (10, 8)]
    bounded = body(head, hidden, torch.tensor([1] * 30 + [21] * 10), capacity=(2, 0, 100))
    assert bounded.products == [(N, 8), (2, 8), (N, 8)]


def test_recording_a_cuda_graph_without_bounds_computes_all_rows_and_says_so(monkeypatch, caplog):
    class OnGPU:
        is_cuda = True

        def __len__(self):
            return N

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert _sizes(OnGPU(), (5, 9, 20, 23), None) == [N] * 3
    assert "recorded without `capacity`" in caplog.text
    assert _sizes(OnGPU(), (5, 9, 20, 23), (7, 0, 99)) == [7, 0, N]


def test_loss_of_a_whole_language_model_compiles_in_one_graph():
    model, tokens = language_model("delta_rnn").eval(), random_tokens(3, 12)
    targets = tokens.roll(-1, 1).masked_fill(tokens == 2, -1)

    def run(loss):
        value = loss(tokens, targets)[0]
        return value, *torch.autograd.grad(value, list(model.parameters()))

    compiled = torch.compile(model.loss, fullgraph=True, backend="aot_eager")
    for a, b in zip(run(compiled), run(model.loss), strict=True):
        torch.testing.assert_close(a, b, **FLOAT64)
