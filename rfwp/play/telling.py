"""Of all heads of a model, the one that shows best where a program's variables are kept."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.play.traces import Kept
from rfwp.play.truth import variables
from rfwp.tasks import CodeExecution
from rfwp.trace import MatrixTrace, Trace


def find_head(kept: Kept, t: int) -> dict[str, Any]:
    """The head whose reads at prints come from the statements that made the printed values, and that writes more strongly there
    than elsewhere; and how much of its read that is at the print that comes next, or at the last one.
    """
    task = getattr(kept.shown, "task", None)
    if not isinstance(task, CodeExecution) or not isinstance(kept.steps, Trace):
        raise InvalidInput(f"{kept.shown.name} reads no programs; only the variables of programs can be looked for")
    prints = [step for step, right in enumerate(kept.truth) if right not in ("", "_")]
    if not prints:
        raise InvalidInput("nothing is printed in this program; add a print, for example: print x ;")
    behind = {step: statements_behind(kept.symbols, step, task.config.semantics) for step in prints}
    found = []
    for layer, record in enumerate(kept.steps.layers):
        for number, matrix in enumerate(record.matrices.values()):
            scores = _scores(matrix, behind)
            head = int(scores.argmax())
            found.append((float(scores[head]), layer, number, head))
    _, layer, number, head = max(found)
    step = next((p for p in prints if p >= t), prints[-1])
    share = list(kept.steps.layers[layer].matrices.values())[number].shares(step)[behind[step], head].sum()
    place = {"t": step, "layer": layer, "matrix": number, "head": head}
    return place | {"variable": kept.symbols[step - 1], "share": round(float(share), 4), "steps": behind[step]}


def statements_behind(symbols: Sequence[str], step: int, semantics: str) -> list[int]:
    """The steps of the statements that made a printed value: the last assignment of the variable, and ++ and -- after it."""
    name, after = symbols[step - 1], variables(symbols, semantics)
    behind, start = list[int](), 0
    for end in range(step):
        if symbols[end] != ";":
            continue
        statement, span = symbols[start:end], range(start, end + 1)
        changed = after[end].get(name) != (after[start - 1].get(name) if start else None)
        # an assignment of the value that the variable has already counts, too
        assigns = list(statement[:2]) == [name, "="] or (changed and "=" in statement)
        if assigns:
            behind = list(span)
        elif changed:
            behind += span
        start = end + 1
    return behind


def _scores(matrix: MatrixTrace, behind: dict[int, list[int]]) -> Tensor:
    """Of every head, (H,): from 0 to 1"""
    shares = torch.stack([matrix.shares(step)[steps].sum(0) for step, steps in behind.items()])
    # more than the whole read means that other writes take away from it
    scores = (1 - (1 - shares).abs()).clamp(min=0).mean(0)
    if matrix.betas is None:
        return scores
    wrote = torch.zeros(len(matrix.betas), dtype=torch.bool)
    wrote[[step for steps in behind.values() for step in steps]] = True
    return scores * (matrix.betas[wrote].mean(0) - matrix.betas[~wrote].mean(0)).clamp(min=0)
