"""Causal attention's kernels in Triton's interpreter, against the definition in float64."""

import pytest
import torch
import triton
import triton.language as tl
from torch.testing import assert_close

from rfwp.ops import attention as op
from rfwp.ops.gpu import attention as kernels
from rfwp.ops.gpu.attention import Plan, Tile
from rfwp.ops.gpu.attention_tiles import generator, philox
from rfwp.ops.gpu.attention_tiles import kept as mask_of
from tests.tolerances import BFLOAT16, FLOAT32

SIZES = [(1, 1, 1, 8), (3, 7, 2, 16), (1, 63, 1, 24), (3, 70, 1, 32), (1, 130, 2, 16)]  # B T H d
SEED = torch.tensor([0x1234_5678_9ABC_DEF0])


@triton.jit
def _kept_kernel(out, seed, T, threshold, M: tl.constexpr, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    """A tile of what dropout keeps of one head, queries along the rows of `out` (T, T)."""
    random = generator(seed, tl.program_id(2), threshold, True)
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    t0, s0 = (j, i) if TRANSPOSED else (i, j)
    keep = mask_of(random, t0, s0, M, N, TRANSPOSED)
    row, column = i + tl.arange(0, M)[:, None], j + tl.arange(0, N)[None, :]
    at = column * T + row if TRANSPOSED else row * T + column
    tl.store(out + tl.program_id(2) * T * T + at, keep.to(tl.int8), mask=(row < T) & (column < T))


def kept(B, T, H, dropout, seed=SEED, M=64, N=64, transposed=False):
    """The m of dropout, (B, H, T, T), by the kernels' own random numbers."""
    out = torch.full((B, H, T, T), -1, dtype=torch.int8)
    threshold = kernels._arguments(16, dropout)[2]
    _kept_kernel[(-(-T // M), -(-T // N), B * H)](out, seed, T, threshold, M, N, transposed)
    assert (out >= 0).all()
    return out.bool()


def drawn(B, T, H, d, dtype=torch.float32):
    """u and dy, in numbers that bfloat16 holds."""
    generator = torch.Generator().manual_seed(T)
    u = torch.randn(B, T, 3, H, d, generator=generator).bfloat16().to(dtype)
    return u, torch.randn(B, T, H, d, generator=generator).bfloat16().to(dtype)


def run(u, dy, seed=None, dropout=0.0, p=None):
    """y and du by the kernels, du into memory full of NaN."""
    y, lse = kernels.forward(*u.unbind(2), seed, True, dropout, p)
    du = torch.full(u.shape, float("nan"), dtype=u.dtype)
    kernels.backward(dy, *u.unbind(2), seed, y, lse, dropout, du.unbind(2), p)
    return y, du


def reference(u, dy, mask=None, dropout=0.0):
    u = u.double().requires_grad_()
    y = op.attention_reference(u, mask, dropout)
    return y.detach(), *torch.autograd.grad(y, u, dy.double())


def assert_all_close(ours, theirs, tolerance):
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.double(), b, **tolerance)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_and_its_gradients_are_the_definition(size):
    u, dy = drawn(*size)
    assert_all_close(run(u, dy), reference(u, dy), FLOAT32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rounds_y_and_what_the_gradient_makes_of_it(dtype):
    u, dy = drawn(2, 70, 1, 16, dtype)
    (y, du), (expected_y, expected_du) = run(u, dy), reference(u, dy)
    assert y.dtype == du.dtype == dtype
    assert_close(y.double(), expected_y, **BFLOAT16)
    # rowsum(dY ⊙ Y) is that of the rounded y
    assert (du - expected_du).norm() <= BFLOAT16["rtol"] * expected_du.norm()


@pytest.mark.parametrize("tiles", [(64, 32, 64, 16), (128, 64, 128, 32), (64, 16, 32, 32)], ids=str)
def test_tiles_of_any_size_give_the_same(tiles):
    M, N, key_M, key_N = tiles
    tile = Tile(M, N, 4, 2)
    u, dy = drawn(1, 100, 1, 16)
    mask = kept(1, 100, 1, 0.25)
    ours = run(u, dy, SEED, 0.25, Plan(tile, tile, Tile(key_M, key_N, 4, 2), "tf32", 32))
    assert_all_close(ours, reference(u, dy, mask, 0.25), FLOAT32)


@pytest.mark.parametrize("size", [(2, 7, 2, 16), (1, 70, 2, 8)], ids=str)
@pytest.mark.parametrize("dropout", [0.125, 0.5])
def test_backward_drops_what_forward_dropped(size, dropout):
    u, dy = drawn(*size)
    mask = kept(*size[:3], dropout)
    assert_all_close(run(u, dy, SEED, dropout), reference(u, dy, mask, dropout), FLOAT32)


def test_inputs_of_any_strides_and_gradients_into_views():
    u, dy = drawn(2, 20, 2, 8)
    expected = run(u, dy)
    turned, dy = u.mT.contiguous().mT, dy.transpose(0, 1).contiguous().transpose(0, 1)
    y, lse = kernels.forward(*turned.unbind(2), None, True, 0.0)
    whole = torch.full((2, 20, 2, 3 * 8 + 1), float("nan"))
    kernels.backward(dy, *turned.unbind(2), None, y, lse, 0.0, whole[..., :-1].split(8, -1))
    assert torch.equal(y, expected[0])
    assert torch.equal(torch.stack(whole[..., :-1].split(8, -1), 2), expected[1])
    assert whole[..., -1].isnan().all()


def test_two_runs_give_the_same_bits():
    u, dy = drawn(2, 70, 1, 16)
    assert all(torch.equal(a, b) for a, b in zip(run(u, dy, SEED, 0.5), run(u, dy, SEED, 0.5), strict=True))


def test_large_scores_do_not_overflow():
    u, dy = drawn(1, 70, 1, 16)
    u[:, :, :2] *= 30
    y, du = run(u, dy)
    assert du.isfinite().all()
    assert_close(y.double(), reference(u, dy)[0], **FLOAT32)


def test_a_later_step_changes_nothing_before_it():
    u, dy = drawn(1, 130, 1, 16)
    changed = u.clone()
    changed[:, 100:] += 1
    assert torch.equal(run(u, dy)[0][:, :100], run(changed, dy)[0][:, :100])


def test_without_a_backward_pass_nothing_is_kept():
    u, _ = drawn(1, 20, 1, 16)
    y, lse = kernels.forward(*u.unbind(2), None, False, 0.0)
    assert lse.numel() == 0
    assert torch.equal(y, kernels.forward(*u.unbind(2), None, True, 0.0)[0])


# --- random numbers ---


@triton.jit
def _philox_kernel(out):
    zero = tl.zeros([1], tl.uint32)
    first, second = philox(tl.zeros([], tl.uint32), zero, zero)
    tl.store(out + tl.arange(0, 1), first.to(tl.int64))
    tl.store(out + 1 + tl.arange(0, 1), second.to(tl.int64))


def test_random_numbers_are_those_of_philox():
    """The published answer for 7 rounds of Philox 2x32 with counter and key 0."""
    out = torch.zeros(2, dtype=torch.int64)
    _philox_kernel[(1,)](out)
    assert out.tolist() == [0x257A3673, 0xCD26BE2A]


def test_a_mask_does_not_depend_on_tiles_and_orientation():
    expected = kept(1, 100, 2, 0.3)
    assert torch.equal(kept(1, 100, 2, 0.3, M=32, N=16), expected)
    assert torch.equal(kept(1, 100, 2, 0.3, M=64, N=32, transposed=True), expected)


@pytest.mark.parametrize("dropout", [0.1, 0.75])
def test_masks_have_the_expected_statistics(dropout):
    """The share that is kept, and of pairs that are both kept: neighbours, those that share a call, heads and seeds."""
    B, T, H = 2, 128, 2
    mask = kept(B, T, H, dropout)
    other = kept(B, T, H, dropout, SEED + 1)
    other_high = kept(B, T, H, dropout, SEED + 2**32)
    pairs = [(mask, other), (mask, other_high), (mask[:, :1], mask[:, 1:2]), (mask[:1], mask[1:])]
    pairs += [(mask[:, :, n:], mask[:, :, :-n]) for n in (1, 2, 8, 16, 64)]
    pairs += [(mask[..., n:], mask[..., :-n]) for n in (1, 2, 8, 16, 64)]
    pairs += [(mask, mask.mT), (mask[..., 8:, 8:], mask[..., :-8, :-8])]
    share = 1 - dropout
    assert abs(mask.double().mean() - share) < 4 * (share * dropout / mask.numel()) ** 0.5
    for a, b in pairs:
        both, n = share * share, a.numel() / (2 if b.shape == a.mT.shape else 1)
        assert abs((a & b).double().mean() - both) < 5 * (both * (1 - both) / n) ** 0.5


def test_dropout_keeps_the_expectation():
    u, _ = drawn(2, 128, 4, 8)
    u[:, :, 2] = 1
    y = kernels.forward(*u.unbind(2), SEED, False, 0.25)[0][..., 0]
    assert abs(y.mean() - 1) < 0.01
    assert y.std() > 0.02


# --- the op ---


def test_the_op_draws_masks_by_torchs_generator():
    u, _ = drawn(1, 20, 1, 16)

    def from_seed(n):
        torch.manual_seed(n)
        return op.attention(u, 0.5)

    assert torch.equal(from_seed(1), from_seed(1))
    assert not torch.equal(from_seed(1), from_seed(2))
    assert torch.equal(op.attention(u, 0.0), op.attention(u, 1e-6))


def test_autograd_and_the_compiler_see_one_op():
    u, dy = drawn(2, 20, 2, 8)
    u.requires_grad_()

    def f(u):
        return 2 * op.attention(u, 0.25)

    results = []
    for run in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)
        y = run(u)
        results.append([y, *torch.autograd.grad(y, u, dy)])
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)
    for keep in (True, False):
        arguments = (u.detach(), SEED, keep, 0.25)
        torch.library.opcheck(torch.ops.rfwp.attention.default, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("size", "dtype", "dropout", "message"),
    [
        (8, torch.float64, 0.0, "no float64"),
        (129, torch.float32, 0.0, "head sizes up to 128"),
        (8, torch.float32, 1.0, "dropout=1.0 keeps nothing"),
    ],
)
def test_what_cannot_run_is_said(size, dtype, dropout, message):
    u = torch.zeros(1, 2, 3, 1, size, dtype=dtype)
    assert message in op.unsupported(u, dropout)
    assert not op.is_fastest(u, dropout)
