"""The tied adaptive input and softmax of the language models: frequent words first, rare ones in clusters."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.errors import InvalidInput, check_same, check_shapes
from rfwp.layers.state import autocast_enabled, may_look
from rfwp.models.adaptive_loss import LOGITS, adaptive_nll, cluster_of, precise


class TiedAdaptive(nn.Module):
    """log p(w | h) = log softmax([E_0 h + b_0, C h + b_C])_w                                    for frequent words w,
                    log softmax([E_0 h + b_0, C h + b_C])_(cluster i) + log softmax(E_i h + b_i)_w  for words w of cluster i

    `cutoffs` part the vocabulary: words below the first one are frequent, each further stretch is a cluster with one row
    in C. The rows of E are the input embeddings and the output weights at once.
    Differs from the authors' code: there cluster i stands at index -i among the head's logits, here at cutoffs[0] + i;
    which row of C means which cluster is all that changes.
    """

    def __init__(self, vocabulary: int, width: int, cutoffs: tuple[int, ...]):
        super().__init__()
        ends = [0, *cutoffs, vocabulary]
        if not cutoffs or any(a >= b for a, b in pairwise(ends)):
            raise InvalidInput(f"cutoffs={tuple(cutoffs)} must rise between 0 and the vocabulary of {vocabulary}, both excluded")
        self.frequent = cutoffs[0]
        self.clusters = list(pairwise(ends[1:]))
        self.ends = ends[1:]
        self.embedding = nn.Embedding(vocabulary, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.cluster = nn.Linear(width, len(self.clusters))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """The whole distribution: (..., width) -> (..., vocabulary)"""
        logits = F.linear(hidden, self.embedding.weight[: self.frequent], self.bias[: self.frequent])
        head = _log_softmax(torch.cat((logits, self.cluster(hidden)), dim=-1))
        parts = [head[..., : self.frequent]]
        for i, (low, high) in enumerate(self.clusters):
            inside = _log_softmax(F.linear(hidden, self.embedding.weight[low:high], self.bias[low:high]))
            parts.append(head[..., self.frequent + i, None] + inside)
        return torch.cat(parts, dim=-1)

    def loss(self, hidden: Tensor, targets: Tensor, ignore: int = -1, capacity: Sequence[int] | None = None) -> Tensor:
        """Mean of -log p(target), 0 for no targets: hidden (N, width), targets (N,); `ignore` and all below 0 do not count.

        The logits of few rows exist at a time. `capacity` bounds the number of targets in each cluster; with it the GPU is
        never asked for that number, and the loss can be recorded in a CUDA graph. See `count`. On a GPU, where nobody looks,
        a bound that is too small makes the loss and its gradients NaN.
        """
        targets = targets.masked_fill(targets == ignore, -1)
        total = self._nll(hidden, targets, capacity)[0] / (targets >= 0).sum().clamp(min=1)
        if capacity is None or (targets.device.type == "cpu" and not torch.compiler.is_compiling()):
            return total
        cluster = cluster_of(targets, self.ends)
        fits = [(cluster == i).sum() <= size for i, size in enumerate(capacity, 1)]
        return total * torch.where(torch.stack(fits).all(), 1.0, torch.nan)

    @torch.no_grad()
    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p(target), without gradients: hidden (..., width), targets (...) -> (...); 0 where the target is -1."""
        return self._nll(hidden.flatten(0, -2), targets.flatten())[1].view(targets.shape)

    @torch.no_grad()
    def count(self, targets: Tensor) -> tuple[int, ...]:
        """How many of the targets lie in each cluster. The largest counts of all batches to come are a `capacity`."""
        cluster = cluster_of(targets, self.ends)
        return tuple(torch.stack([(cluster == i + 1).sum() for i in range(len(self.clusters))]).tolist())

    def _nll(self, hidden: Tensor, targets: Tensor, capacity: Sequence[int] | None = None) -> tuple[Tensor, ...]:
        weights = (self.embedding.weight, self.bias, self.cluster.weight, self.cluster.bias)
        dtype = hidden.dtype
        if autocast_enabled(hidden) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(hidden.device.type)
        else:
            check_same("TiedAdaptive", hidden=hidden, weights=weights[0])
        self._check(hidden, targets, capacity)
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in (hidden, *weights))
        logits = LOGITS.get(hidden.device.type, LOGITS["cuda"])
        return adaptive_nll(hidden, *weights, targets.long(), self.ends, capacity, dtype, logits, keep)

    def _check(self, hidden: Tensor, targets: Tensor, capacity: Sequence[int] | None) -> None:
        if len(hidden):
            check_shapes("TiedAdaptive", {"hidden": (hidden, f"N {self.embedding.embedding_dim}"), "targets": (targets, "N")})
        if capacity is not None and (len(capacity) != len(self.clusters) or min(capacity) < 0):
            raise InvalidInput(
                f"TiedAdaptive: capacity={tuple(capacity)}; give one number for each of {len(self.clusters)} clusters"
            )
        if not may_look(targets):
            return
        if len(targets) and (largest := int(targets.max())) >= self.ends[-1]:
            raise InvalidInput(f"TiedAdaptive: targets contain {largest}, outside of the vocabulary 0 .. {self.ends[-1] - 1}")
        if capacity is None:
            return
        counts = self.count(targets)
        if any(n > size for n, size in zip(counts, capacity, strict=True)):
            raise InvalidInput(f"TiedAdaptive: capacity={tuple(capacity)} is too small for {counts} targets in the clusters")


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits, dim=-1, dtype=precise(logits.dtype))
