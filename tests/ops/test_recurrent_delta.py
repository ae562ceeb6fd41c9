import torch

from rfwp.ops import delta, recurrent_delta
from tests.ops.cases import CASES, assert_same, every_backend, example
from tests.tolerances import FLOAT64

CASE = next(case for case in CASES if case.op is recurrent_delta)


@every_backend
def test_recurrent_delta_with_zero_R_is_delta_with_softmax_and_sigmoid(backend: str) -> None:
    x = example(CASE, 70, grad=False)
    (q, k, v, beta), maps, (W, y0) = x.inputs[:4], x.inputs[4:], x.state
    zero = [torch.zeros_like(R) for R in maps]
    y, (W_T, y_T) = recurrent_delta(q, k, v, beta, *zero, state=(W, y0), reset=x.reset, backend=backend)
    expected, W_delta = delta(q.softmax(-1), k.softmax(-1), v, beta.sigmoid(), state=W, reset=x.reset, backend=backend)
    assert_same((y, W_T, y_T), (expected, W_delta, expected[:, -1]), FLOAT64)


@every_backend
def test_first_step_sees_no_recurrence(backend: str) -> None:
    """tanh(0) = 0, so R does not matter before there is an output."""
    x = example(CASE, 1, grad=False)
    (q, k, v, beta), maps = x.inputs[:4], x.inputs[4:]
    y, _ = recurrent_delta(q, k, v, beta, *maps, backend=backend)
    other, _ = recurrent_delta(q, k, v, beta, *[R * -3 for R in maps], backend=backend)
    assert_same(y, other, FLOAT64)


@every_backend
def test_every_recurrent_map_matters_from_the_second_step(backend: str) -> None:
    x = example(CASE, 2, grad=False)
    y, _ = recurrent_delta(*x.inputs, backend=backend)
    for changed in range(4, 8):
        inputs = [-a if i == changed else a for i, a in enumerate(x.inputs)]
        other, _ = recurrent_delta(*inputs, backend=backend)
        assert_same(other[:, 0], y[:, 0], FLOAT64)
        assert not torch.allclose(other[:, 1], y[:, 1])
