"""`delta` one step at a time: one launch a direction, a program per batch row, head and block of values, W in registers.

Forward, in one pass over the old W:  e = β (v - W k),  y = W q + e (k·q),  W <- W + e ⊗ k.
Backward, segment by segment from the last checkpoint to the first: run the segment again and write down r = v - W k, then
go back through it. W is recovered by subtracting e ⊗ k, which drifts no further than one segment.
Inside the kernels W is kept transposed, (K, V), so that most of a sum over keys stays inside a thread.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.fwp.maps import MAPS
from rfwp.ops.gpu.delta_chunk import SEGMENT, Gradients
from rfwp.ops.gpu.delta_tiles import head, mapped, matrix, rate
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.layout import output_strides, rate_strides, room, sizes_of, vector_strides
from rfwp.ops.gpu.steps import flags


@triton.jit
def _step(p, strides, t, d, T, D: tl.constexpr):
    """Features d of step t in float32; zeros beyond T and D."""
    return tl.load(p + t * strides[1] + d * strides[4], mask=(d < D) & (t < T), other=0.0).to(tl.float32)


@triton.jit
def _mapped_step(x, d, D: tl.constexpr, MAP: tl.constexpr):
    """φ of one step"""
    if MAP != "identity":
        one = tl.zeros([1], tl.int32)
        x = tl.sum(mapped(x[None, :], one, d, 1, D, MAP)[0], 0)
    return x


@triton.jit
def _rate(p, strides, t, T, SIGMOID: tl.constexpr):
    """The learning rate of step t; zero beyond T."""
    b = tl.load(p + t * strides[1], mask=t < T, other=0.0).to(tl.float32)
    return rate(b, SIGMOID)


@triton.jit(do_not_specialize=["T", "H", "nV"])
def _forward_kernel(
    q, k, v, beta, W, reset, y, W_T, starts, T, H, nV, q_s, k_s, v_s, beta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, SEGMENT: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, RESET: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv = tl.arange(0, BK), iv * BV + tl.arange(0, BV)
    q, k, v = head(q, q_s, b, h, G), head(k, k_s, b, h, G), head(v, v_s, b, h, G)
    beta = head(beta, beta_s, b, h, G)
    reset += b * T
    y += (b * T * H + h) * V + dv
    starts += (b * ((T + SEGMENT - 1) // SEGMENT) * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(W + (b * H + h) * V * K, dk, dv, K, V)
    S = tl.load(at, mask=inside, other=0.0)
    # the next step's loads are under way while this one is computed
    q_next, k_next = _step(q, q_s, 0, dk, T, K), _step(k, k_s, 0, dk, T, K)
    v_next, b_next = _step(v, v_s, 0, dv, T, V), _rate(beta, beta_s, 0, T, SIGMOID)
    for t in range(T):
        q_n, k_n, v_n, b_n = _mapped_step(q_next, dk, K, MAP), _mapped_step(k_next, dk, K, MAP), v_next, b_next
        q_next, k_next = _step(q, q_s, t + 1, dk, T, K), _step(k, k_s, t + 1, dk, T, K)
        v_next = _step(v, v_s, t + 1, dv, T, V)
        b_next = _rate(beta, beta_s, t + 1, T, SIGMOID)
        if KEEP and t % SEGMENT == 0:
            at, inside = matrix(starts + (t // SEGMENT) * matrices, dk, dv, K, V)
            tl.store(at, S, mask=inside)
        if RESET:
            S = tl.where(tl.load(reset + t) != 0, 0.0, S)
        e = b_n * (v_n - tl.sum(S * k_n[:, None], 0))
        y_n = tl.sum(S * q_n[:, None], 0) + e * tl.sum(k_n * q_n, 0)
        tl.store(y + t * H * V, y_n.to(y.dtype.element_ty), mask=dv < V)
        S += k_n[:, None] * e[None, :]
    at, inside = matrix(W_T + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, S, mask=inside)


@triton.jit(do_not_specialize=["T", "H", "nV"])
def _backward_kernel(
    dy, dW_T, q, k, v, beta, reset, starts, r, dq, dk_, dv_, dbeta, dW, T, H, nV, steps, dy_s, q_s, k_s, v_s, beta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, SEGMENT: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv = tl.arange(0, BK), iv * BV + tl.arange(0, BV)
    dy, q, k, v = head(dy, dy_s, b, h, G), head(q, q_s, b, h, G), head(k, k_s, b, h, G), head(v, v_s, b, h, G)
    beta = head(beta, beta_s, b, h, G)
    reset += b * T
    # dq, dk, dβ: one part for every block of values; `steps` is B T H
    part = iv.to(tl.int64) * steps + b * T * H + h
    dq += part * K + dk
    dk_ += part * K + dk
    dbeta += part
    r += (b * T * H + h) * V + dv
    dv_ += (b * T * H + h) * V + dv
    segments = (T + SEGMENT - 1) // SEGMENT
    starts += (b * segments * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(dW_T + (b * H + h) * V * K, dk, dv, K, V)
    dS = tl.load(at, mask=inside, other=0.0)
    for m in range(segments):
        first = (segments - 1 - m) * SEGMENT
        after = tl.minimum(first + SEGMENT, T)
        at, inside = matrix(starts + (segments - 1 - m) * matrices, dk, dv, K, V)
        S = tl.load(at, mask=inside, other=0.0)
        for t in range(first, after):
            k_n, v_n = _mapped_step(_step(k, k_s, t, dk, T, K), dk, K, MAP), _step(v, v_s, t, dv, T, V)
            if RESET:
                S = tl.where(tl.load(reset + t) != 0, 0.0, S)
            r_n = v_n - tl.sum(S * k_n[:, None], 0)
            tl.store(r + t * H * V, r_n, mask=dv < V)
            S += k_n[:, None] * (_rate(beta, beta_s, t, T, SIGMOID) * r_n)[None, :]
        # r was written by one thread and may be read by another
        tl.debug_barrier()
        for back in range(after - first):
            t = after - 1 - back
            q_n, k_n = _mapped_step(_step(q, q_s, t, dk, T, K), dk, K, MAP), _mapped_step(_step(k, k_s, t, dk, T, K), dk, K, MAP)
            dy_n, b_n = _step(dy, dy_s, t, dv, T, V), _rate(beta, beta_s, t, T, SIGMOID)
            r_n = tl.load(r + t * H * V, mask=dv < V, other=0.0)
            dS += q_n[:, None] * dy_n[None, :]
            dq_n = tl.sum(S * dy_n[None, :], 1)
            e, de = b_n * r_n, tl.sum(dS * k_n[:, None], 0)
            S -= k_n[:, None] * e[None, :]
            if RESET:
                forgotten = tl.load(reset + t) != 0
                S = tl.where(forgotten, 0.0, S)
            dk_n = tl.sum(dS * e[None, :] - S * (b_n * de)[None, :], 1)
            dS -= k_n[:, None] * (b_n * de)[None, :]
            tl.store(dq + t * H * K, dq_n.to(dq.dtype.element_ty), mask=dk < K)
            tl.store(dk_ + t * H * K, dk_n.to(dk_.dtype.element_ty), mask=dk < K)
            tl.store(dv_ + t * H * V, (b_n * de).to(dv_.dtype.element_ty), mask=dv < V)
            tl.store(dbeta + t * H, tl.sum(de * r_n, 0).to(dbeta.dtype.element_ty))
            if RESET:
                dS = tl.where(forgotten, 0.0, dS)
                # what a reset has forgotten cannot be subtracted: add the segment up again to there
                if forgotten:
                    S = tl.load(at, mask=inside, other=0.0)
                    for j in range(first, t):
                        e = _rate(beta, beta_s, j, T, SIGMOID) * tl.load(r + j * H * V, mask=dv < V, other=0.0)
                        S = tl.where(tl.load(reset + j) != 0, 0.0, S)
                        S += _mapped_step(_step(k, k_s, j, dk, T, K), dk, K, MAP)[:, None] * e[None, :]
    at, inside = matrix(dW + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, dS, mask=inside)


def _blocks(K: int, V: int) -> tuple[int, int, int]:
    """Padded keys, values a program, warps: W takes about 16 registers a thread."""
    BK = max(8, triton.next_power_of_2(K))
    BV = min(max(8, triton.next_power_of_2(V)), max(8, 2048 // BK))
    return BK, BV, max(1, min(4, BK * BV // 512))


def checkpoints(T: int) -> int:
    """W at the start of every segment."""
    return -(-T // SEGMENT)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    W: Tensor,
    reset: Tensor | None,
    keep: bool,
    phi: str = "identity",
    sigmoid: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the final W, W at the start of every segment, and an empty trace."""
    B, T, H, G, K, V = sizes_of(q, v)
    BK, BV, warps = _blocks(K, V)
    nV = -(-V // BV)
    W = W.contiguous()
    y, W_T = v.new_empty(B, T, H, V), torch.empty_like(W)
    starts = W.new_empty(B, checkpoints(T) if keep else 0, H, V, K)
    with torch.cuda.device_of(q):
        launch(_forward_kernel, B * H * nV,
            q, k, v, beta, W, flags(reset, q), y, W_T, starts, T, H, nV,
            vector_strides(q), vector_strides(k), vector_strides(v), rate_strides(beta),
            K=K, V=V, BK=BK, BV=BV, G=G, SEGMENT=SEGMENT, MAP=phi, SIGMOID=sigmoid, RESET=reset is not None, KEEP=keep,
            num_warps=warps,
        )  # fmt: skip
    return y, W_T, starts, W.new_empty(0)


def backward(
    dy: Tensor,
    dW_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    reset: Tensor | None,
    starts: Tensor,
    trace: Tensor,
    phi: str = "identity",
    sigmoid: bool = False,
    out: Gradients | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta and the first W; the first four into `out`, where given."""
    B, T, H, G, K, V = sizes_of(q, v)
    BK, BV, warps = _blocks(K, V)
    nV = -(-V // BV)
    # one part for every block of values, and only their sum goes through φ: both after the kernel, a few steps being the rule
    parts = q.dtype if nV == 1 and phi == "identity" and not sigmoid else torch.float32
    dq, dk = (q.new_empty(nV, B, T, H, K, dtype=parts) for _ in range(2))
    dbeta = q.new_empty(nV, B, T, H, dtype=parts)
    dv, r, dW = room(v), starts.new_empty(B, T, H, V), room(dW_T)
    with torch.cuda.device_of(q):
        launch(_backward_kernel, B * H * nV,
            dy, dW_T.contiguous(), q, k, v, beta, flags(reset, q), starts, r, dq, dk, dv, dbeta, dW, T, H, nV, B * T * H,
            output_strides(dy, G), vector_strides(q), vector_strides(k), vector_strides(v), rate_strides(beta),
            K=K, V=V, BK=BK, BV=BV, G=G, SEGMENT=SEGMENT, MAP=phi, SIGMOID=sigmoid, RESET=reset is not None, num_warps=warps,
        )  # fmt: skip
    sums = [x.sum(0) if nV > 1 else x[0] for x in (dq, dk, dbeta)]
    dq, dk, dbeta = (x.view(like.shape) for x, like in zip(sums, (q, k, beta), strict=True))
    dq, dk = _raw_gradient(phi, q, dq), _raw_gradient(phi, k, dk)
    if sigmoid:
        rate = beta.float().sigmoid()
        dbeta = dbeta * rate * (1 - rate)
    if out is None:
        return dq.to(q.dtype), dk.to(q.dtype), dv, dbeta.to(q.dtype), dW
    for x, place in zip((dq, dk, dv, dbeta), out, strict=True):
        place.copy_(x)
    return out[0], out[1], out[2], out[3], dW


def _raw_gradient(phi: str, x: Tensor, dx: Tensor) -> Tensor:
    """From the gradient of φ(x) to that of x."""
    if phi == "identity":
        return dx
    x = x.float()
    y = MAPS[phi](x)
    if phi != "elu":
        dx = dx - (dx * y).sum(-1, keepdim=True)
    if phi == "softmax":
        return y * dx
    positive = MAPS["elu"](x)
    # elu'(x) = min(elu(x) + 1, 1)
    dx = dx * positive.clamp(max=1)
    if phi == "elu":
        return dx
    return dx / (positive.sum(-1, keepdim=True) + (1e-5 if phi == "elu_sum_eps" else 0.0))
