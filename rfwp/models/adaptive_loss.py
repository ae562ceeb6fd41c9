"""-log p(target) under an adaptive softmax without its logits: some rows at a time, and their gradients at once.

    p = softmax(W h + b),  d(-log p_w)/d(W h + b) = p - e_w

The gradient of a sum of losses needs nothing that comes later, so each chunk of logits becomes its gradient while it is
there and is never seen again; backward multiplies by the number that arrives. Shapes depend on no data: to torch.compile
all this is one op. How many targets lie in each cluster decides how much is computed, and there are three ways to know it:

    capacity      the caller gives upper bounds: nothing is asked, shapes are fixed, all can be recorded in a CUDA graph
    eager         the device is asked once, for one number a cluster
    recording     without bounds every cluster is computed for all rows: right, but many times slower, and said so
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS = {"cpu": 2**22, "cuda": 2**25}
"""Logits of one chunk, of which about two exist at once: 128 MB in float32 on a GPU, 16 MB on a CPU, where memory that is
asked for anew for every chunk costs more than its numbers."""

log = logging.getLogger("rfwp")


def precise(dtype: torch.dtype) -> torch.dtype:
    """Probabilities and sums are in float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def cluster_of(targets: Tensor, ends: Sequence[int]) -> Tensor:
    """0 for frequent words and ignored targets, 1 for the first cluster, ..."""
    cluster = torch.zeros_like(targets)
    for low in ends[:-1]:
        cluster += targets >= low
    return cluster


def forward(
    hidden: Tensor,
    E: Tensor,
    b: Tensor,
    C: Tensor,
    c: Tensor,
    targets: Tensor,
    ends: Sequence[int],
    capacity: Sequence[int] | None,
    dtype: torch.dtype,
    logits: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Σ_n -log p(target_n), its terms (N,), and with `keep` the gradients of the sum to the five first inputs.

    hidden (N, D), E (V, D), b (V,), C (clusters, D), c (clusters,), targets (N,), below 0 where they do not count;
    `ends` are the cutoffs and V. Products are computed in `dtype`, on `logits` logits at a time.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        cluster, counted = cluster_of(targets, ends), targets >= 0
        # what is not counted may hold anything, and zero times NaN is NaN
        h = hidden.masked_fill(~counted.unsqueeze(-1), 0).to(dtype)
        dh, dE, db, dC, dc = _zeros((hidden, E, b, C, c), keep)

        frequent = ends[0]
        W, b_W = torch.cat((E[:frequent], C)), torch.cat((b[:frequent], c))
        dW, db_W = _zeros((W, b_W), keep)
        place = torch.where(cluster > 0, frequent + cluster - 1, targets)
        nll, dh_part = _softmax(h, W, b_W, place, counted, dW, db_W, logits, keep)
        if keep:
            dh += dh_part
            dE[:frequent], dC[:] = dW[:frequent], dW[frequent:]
            db[:frequent], dc[:] = db_W[:frequent], db_W[frequent:]

        order = cluster.argsort(stable=True)
        for i, size in enumerate(_sizes(cluster, ends, capacity), 1):
            if not size:
                continue
            words = slice(*ends[i - 1 : i + 1])
            t = torch.arange(size, device=h.device)
            # the rows of this cluster stand together; those past its last one are there to fill a fixed size
            rows = order[((cluster < i).sum() + t).clamp(max=len(order) - 1)]
            inside = t < (cluster == i).sum()
            x = h[rows].masked_fill(~inside.unsqueeze(-1), 0)
            place = targets[rows] - words.start
            nll_part, dh_part = _softmax(x, E[words], b[words], place, inside, dE[words], db[words], logits, keep)
            nll.index_add_(0, rows, nll_part)
            if keep:
                dh.index_add_(0, rows, dh_part)
        return nll.sum(), nll, dh, dE, db, dC, dc


def _zeros(tensors: Sequence[Tensor], keep: bool) -> list[Tensor]:
    """Where gradients add up; nothing if there are none."""
    return [torch.zeros_like(x, dtype=precise(x.dtype)) if keep else x.new_empty(0) for x in tensors]


def _softmax(
    h: Tensor, W: Tensor, b: Tensor, place: Tensor, counted: Tensor, dW: Tensor, db: Tensor, logits: int, keep: bool
) -> tuple[Tensor, Tensor]:
    """-log softmax(W h + b)_place of every row and its gradient to h, 0 where not counted; adds those of W and b to dW, db."""
    words = len(W)
    # words that never come fill up to a multiple of 8: matrix units want every row of logits to start at 16 bytes
    fill = -words % 8
    W, b = F.pad(W, (0, 0, 0, fill)).to(h.dtype), F.pad(b, (0, fill), value=-torch.inf).to(h.dtype)
    size = max(1, logits // len(W))
    size = size // 64 * 64 or size
    place = place.masked_fill(~counted, 0)
    nll, dh = h.new_empty(len(h), dtype=precise(h.dtype)), torch.empty_like(h, dtype=precise(h.dtype))
    for start in range(0, len(h), size):
        rows = slice(start, start + size)
        log_p = F.log_softmax(torch.addmm(b, h[rows], W.T), dim=-1, dtype=nll.dtype)
        index = place[rows].unsqueeze(-1)
        target = log_p.gather(-1, index)
        nll[rows] = -target.squeeze(-1)
        if keep:
            # p - e_w, in the memory of log p
            error = log_p.exp_().scatter_(-1, index, target.expm1())
            db += error[:, :words].T @ counted[rows].to(error.dtype)
            error = error.to(h.dtype)
            dh[rows] = error @ W
            if error.dtype == dW.dtype:
                dW.addmm_(error[:, :words].T, h[rows])
            else:
                dW += error[:, :words].T @ h[rows]
    return nll.masked_fill_(~counted, 0), dh.masked_fill_(~counted.unsqueeze(-1), 0)


def _sizes(cluster: Tensor, ends: Sequence[int], capacity: Sequence[int] | None) -> list[int]:
    """How many rows each cluster is computed for."""
    N = len(cluster)
    if capacity is not None:
        return [min(N, size) for size in capacity]
    if cluster.is_cuda and torch.cuda.is_current_stream_capturing():
        log.warning("adaptive softmax: recorded without `capacity`, so every cluster is computed for all %d targets", N)
        return [N] * (len(ends) - 1)
    return torch.stack([(cluster == i).sum() for i in range(1, len(ends))]).tolist()


def _shapes(
    hidden: Tensor,
    E: Tensor,
    b: Tensor,
    C: Tensor,
    c: Tensor,
    targets: Tensor,
    ends: Sequence[int],
    capacity: Sequence[int] | None,
    dtype: torch.dtype,
    logits: int,
    keep: bool,
) -> tuple[Tensor, ...]:
    gradients = [torch.empty_like(x, dtype=precise(x.dtype)) if keep else x.new_empty(0) for x in (hidden, E, b, C, c)]
    nll = hidden.new_empty(hidden.shape[0], dtype=precise(dtype))
    return nll.new_empty(()), nll, *gradients


def _save(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.dtypes = [x.dtype for x in inputs[:5]]
    ctx.others = len(inputs) - 5
    ctx.set_materialize_grads(False)


def _scale(ctx: Any, arriving: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(grad is not None for grad in others):
        raise RuntimeError("adaptive softmax: only the sum of the losses has a gradient, and that gradient has none")
    if arriving is None:
        return (None,) * (5 + ctx.others)
    scaled = ((arriving * x).to(dtype) for x, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True))
    return *scaled, *(None,) * ctx.others


adaptive_nll = torch.library.custom_op("rfwp::adaptive_nll", forward, mutates_args=())
adaptive_nll.register_fake(_shapes)
adaptive_nll.register_autograd(_scale, setup_context=_save)
