"""What the page gets to know of a model and of a trace, as plain data for JSON. Arrays are base64 of little-endian numbers."""

import base64
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rfwp.play.shown import CODE, LANGUAGE, LISTS, Shown, ShownAgent, ShownLanguage, ShownTask
from rfwp.play.traces import Kept
from rfwp.play.truth import nesting, variables
from rfwp.tasks import CodeExecution
from rfwp.trace import LayerTrace, MatrixTrace, Trace

EXAMPLES = {
    CODE: "x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;",
    LISTS: "[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1 ] ]",
    LANGUAGE: "The ship left the harbour in the morning . In the evening the crew of the ship",
}
EXPECTED, EXPORTED = 5, 20
"""Answers that the page shows, and words of a language model that an export holds."""


def describe_model(shown: Shown) -> dict[str, Any]:
    """What stands on the page before any text is read."""
    common = {"name": shown.name, "kind": shown.kind, "parameters": sum(p.numel() for p in shown.model.parameters())}
    blocks: Any = getattr(shown.model.core, "blocks", ())
    composition = getattr(blocks[0].layer, "composition", None) if blocks else None
    if composition is None:
        # an agent that is worth watching without fast weights
        return common | {"title": type(shown.model.core).__name__, "layers": 0, "heads": 0}
    memory = {
        "title": composition.name,
        "rule": _equation(composition.rule),
        "fast": _equation(composition.fast),
        "erases": composition.rule.has_beta,
        "recurrent": composition.fast.recurrent or composition.slow.feeds_back,
        "layers": len(blocks),
        "heads": blocks[0].layer.heads,
    }
    return common | memory | _describe_task(shown)


def _describe_task(shown: Shown) -> dict[str, Any]:
    if isinstance(shown, ShownLanguage):
        return {"words": len(shown.words)}
    if isinstance(shown, ShownAgent):
        return {}
    task = shown.task
    return {
        "symbols": list(task.source.symbols),
        "semantics": task.config.semantics if isinstance(task, CodeExecution) else "",
        "size": task.config.statements if isinstance(task, CodeExecution) else task.config.depth,
    }


def describe_trace(key: str, kept: Kept) -> dict[str, Any]:
    """A whole trace without its fast weights: what was said at every token, and how much every head wrote."""
    data = {
        "id": key,
        "model": kept.shown.name,
        "kind": kept.shown.kind,
        "tokens": kept.symbols,
        "truth": kept.truth,
        **describe_layers(kept.steps.layers),
        # one scale for all steps of a layer's matrix, so that colours keep their meaning
        "scales": [[scale(m.weights) for m in layer.matrices.values()] for layer in kept.steps.layers],
        "written": [_bytes(_largest_is_one(written(layer))) for layer in kept.steps.layers],
        "strengths": [[_strengths(m) for m in layer.matrices.values()] for layer in kept.steps.layers],
    }
    if isinstance(kept.steps, Trace):
        return data | _describe_answers(kept.shown, kept.steps, kept.symbols)
    return data | _describe_words(kept)


def _describe_answers(shown: Any, steps: Trace, symbols: list[str]) -> dict[str, Any]:
    chosen = steps.probabilities.max(-1)
    said = {
        "predictions": shown.task.target.decode(chosen.indices),
        "confidence": [round(p, 4) for p in chosen.values.tolist()],
    }
    if shown.kind == CODE:
        return said | {"variables": variables(symbols, shown.task.config.semantics)}
    return said | {"nesting": [[n.depth, n.opened, n.value] for n in nesting(symbols)]}


def _describe_words(kept: Kept) -> dict[str, Any]:
    """Surprise in bits, from the second word on; words that the model does not know."""
    assert isinstance(kept.shown, ShownLanguage) and not isinstance(kept.steps, Trace)
    unknown = [t for t, word in enumerate(kept.symbols) if word not in kept.shown.words]
    return {"surprise": [None, *kept.steps.surprise], "unknown": unknown}


def describe_layers(layers: Sequence[LayerTrace]) -> dict[str, Any]:
    """How many there are, and what one of them holds."""
    matrices = layers[0].matrices if layers else {}
    shapes = [
        {"name": name, "rows": m.values.shape[-1], "cols": m.keys.shape[-1], "beta": m.betas is not None}
        for name, m in matrices.items()
    ]
    return {"matrices": shapes, "layers": len(layers), "heads": layers[0].outputs.shape[1] if layers else 0}


def describe_step(kept: Kept, t: int, layer: int, head: int) -> dict[str, Any]:
    """One step of one layer with all its heads; what the model expects, and where the chosen head's reads come from."""
    likely = [[answer, round(p, 5)] for answer, p in expected(kept, t, EXPECTED)]
    record = kept.steps.layers[layer]
    sources = {name: m.shares(t)[:, head] for name, m in record.matrices.items()}
    return {"t": t, "layer": layer, "head": head, "expected": likely, **describe_memory(record, t, sources)}


def expected(kept: Kept, t: int, count: int) -> list[tuple[str, float]]:
    """The likeliest answers at a step, with their probabilities."""
    if isinstance(kept.shown, ShownTask):
        assert isinstance(kept.steps, Trace)
        answers = kept.shown.task.target
        likely = kept.steps.probabilities[t].topk(min(count, len(answers)))
        return list(zip(answers.decode(likely.indices), likely.values.tolist(), strict=True))
    from rfwp.play.language import expected_words

    assert not isinstance(kept.steps, Trace)
    return expected_words(kept.shown, kept.steps, t, count)


def describe_memory(record: LayerTrace, t: int, sources: Mapping[str, Tensor]) -> dict[str, Any]:
    """A layer's fast matrices at a step, and each step's share in what was read from them."""
    return {
        "output": _floats(record.outputs[t]),
        "matrices": [
            {
                "name": name,
                "weights": _floats(m.weights[t]),
                "key": _floats(m.keys[t]),
                "value": _floats(m.values[t]),
                "query": _floats(m.queries[t]),
                "read": _floats(m.reads[t]),
                "write": _floats(m.change(t)),
                "beta": None if m.betas is None else [round(b, 4) for b in m.betas[t].tolist()],
                "shares": _floats(sources[name]),
            }
            for name, m in record.matrices.items()
        ],
    }


def export_step(kept: Kept, t: int) -> dict[str, Any]:
    """One step of all layers and heads as plain numbers, to be read by other programs."""
    answers = dict(expected(kept, t, EXPORTED if isinstance(kept.shown, ShownLanguage) else len(kept.shown.task.target)))
    said: dict[str, Any] = {"truth": kept.truth[t], "prediction": next(iter(answers)), "probabilities": answers}
    if not isinstance(kept.steps, Trace):
        said["surprise"] = kept.steps.surprise[t - 1] if t else None
    return {
        "model": kept.shown.name,
        "composition": kept.steps.layers[0].composition.name,
        "tokens": kept.symbols,
        "step": t,
        "token": kept.symbols[t],
        **said,
        "layers": export_layers(kept.steps.layers, t),
    }


def export_layers(layers: Sequence[LayerTrace], t: int) -> list[dict[str, Any]]:
    return [
        {"output": record.outputs[t].tolist(), "matrices": {name: _export(m, t) for name, m in record.matrices.items()}}
        for record in layers
    ]


def describe_difference(a: Trace, b: Trace) -> dict[str, Any]:
    """How far two traces of one model over as many tokens are apart at every step: what they expect, and their memories."""
    apart = 0.5 * (a.probabilities - b.probabilities).abs().sum(-1)
    layers = []
    for one, other in zip(a.layers, b.layers, strict=True):
        pairs = [(m.weights, other.matrices[name].weights) for name, m in one.matrices.items()]
        distance = sum((x - y).square().sum((1, 2, 3)) for x, y in pairs)
        size = sum(x.square().sum((1, 2, 3)) + y.square().sum((1, 2, 3)) for x, y in pairs)
        layers.append([round(r, 4) for r in (distance / size).nan_to_num().sqrt().tolist()])  # type: ignore[union-attr]
    return {"expectations": [round(p, 4) for p in apart.tolist()], "memories": layers}


def _export(matrix: MatrixTrace, t: int) -> dict[str, Any]:
    parts = {"weights": matrix.weights, "key": matrix.keys, "value": matrix.values, "query": matrix.queries, "read": matrix.reads}
    numbers = {name: part[t].tolist() for name, part in parts.items()}
    return numbers | {"beta": None if matrix.betas is None else matrix.betas[t].tolist()}


def written(layer: LayerTrace) -> Tensor:
    """‖W_t - W_{t-1}‖ over all matrices of a layer, (T, H)"""
    return sum((m.weights - m.before).square().sum((-1, -2)) for m in layer.matrices.values()).sqrt()  # type: ignore[union-attr]


def _strengths(matrix: MatrixTrace) -> str | None:
    """β of every step and head"""
    return None if matrix.betas is None else _bytes(matrix.betas)


def _largest_is_one(sizes: Tensor) -> Tensor:
    return sizes / sizes.max().clamp(min=1e-12)


def scale(weights: Tensor) -> float:
    """The largest weight, but for a few."""
    values = weights.abs().flatten()
    # quantiles of large tensors are slow
    some = values[:: max(1, len(values) // 20_000)]
    return round(float(some.quantile(0.998).clamp(min=1e-6)), 6)


def _equation(part: object) -> str:
    """The first line of its docstring, without the remark at the end."""
    lines = (inspect.getdoc(type(part)) or "").splitlines()
    first = lines[0] if "=" in lines[0] else next((line for line in lines if "=" in line), lines[0])
    return first.split("   ")[0].strip()


def _floats(values: Tensor) -> str:
    return _base64(values.detach().cpu().numpy().astype("<f4"))


def _bytes(values: Tensor) -> str:
    """From 0 .. 1 to 0 .. 255"""
    return _base64((values * 255).round().cpu().numpy().astype(np.uint8))


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
