"""The tied adaptive input and softmax of the language models: frequent words first, rare ones in clusters."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.errors import InvalidInput


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
        self.embedding = nn.Embedding(vocabulary, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.cluster = nn.Linear(width, len(self.clusters))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """The whole distribution: (..., width) -> (..., vocabulary)"""
        head = self._head(hidden)
        parts = [head[..., : self.frequent]]
        for i, (low, high) in enumerate(self.clusters):
            parts.append(head[..., self.frequent + i, None] + self._inside(hidden, low, high))
        return torch.cat(parts, dim=-1)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean of -log p(target): hidden (N, width), targets (N,); 0 for N = 0. A cluster costs only where targets are in it."""
        head = self._head(hidden)
        # a target's place among the head's logits: itself, or its cluster
        place = targets
        for i, (low, high) in enumerate(self.clusters):
            place = torch.where((targets >= low) & (targets < high), self.frequent + i, place)
        nll = -head.gather(-1, place.unsqueeze(-1)).sum()
        for low, high in self.clusters:
            rows = ((targets >= low) & (targets < high)).nonzero().squeeze(-1)
            if len(rows):
                inside = self._inside(hidden[rows], low, high)
                nll = nll - inside.gather(-1, (targets[rows] - low).unsqueeze(-1)).sum()
        return nll / max(1, len(targets))

    def _head(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.embedding.weight[: self.frequent], self.bias[: self.frequent])
        return _log_softmax(torch.cat((logits, self.cluster(hidden)), dim=-1))

    def _inside(self, hidden: Tensor, low: int, high: int) -> Tensor:
        return _log_softmax(F.linear(hidden, self.embedding.weight[low:high], self.bias[low:high]))


def _log_softmax(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
