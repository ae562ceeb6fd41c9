"""What the page gets to know of a model and of a trace, as plain data for JSON. Arrays are base64 of little-endian numbers."""

import base64
import inspect
from typing import Any

import numpy as np
from torch import Tensor

from rfwp.play.shown import CODE, Shown
from rfwp.play.truth import nesting, variables
from rfwp.tasks import CodeExecution
from rfwp.trace import MatrixTrace, Trace

EXAMPLES = {
    "code-execution": "x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;",
    "listops": "[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1 ] ]",
}


def describe_model(shown: Shown) -> dict[str, Any]:
    """What stands on the page before any text is read."""
    composition = shown.model.core.blocks[0].layer.composition  # type: ignore[union-attr,index]
    core = shown.model.config.core
    return {
        "name": shown.name,
        "kind": shown.kind,
        "title": composition.name,
        "rule": _equation(composition.rule),
        "fast": _equation(composition.fast),
        "erases": composition.rule.has_beta,
        "recurrent": composition.fast.recurrent or composition.slow.feeds_back,
        "layers": core.layers,
        "heads": core.heads,
        "parameters": sum(p.numel() for p in shown.model.parameters()),
        "symbols": list(shown.task.source.symbols),
        "answers": list(shown.task.target.symbols),
        "semantics": shown.task.config.semantics if isinstance(shown.task, CodeExecution) else "",
        "size": shown.task.config.statements if isinstance(shown.task, CodeExecution) else shown.task.config.depth,
    }


def describe_trace(key: str, shown: Shown, steps: Trace, truth: list[str]) -> dict[str, Any]:
    """A whole trace without its fast weights: what was said at every token, and how much every head wrote."""
    symbols = shown.task.source.decode(steps.tokens)
    chosen = steps.probabilities.max(-1)
    data = {
        "id": key,
        "model": shown.name,
        "kind": shown.kind,
        "tokens": symbols,
        "truth": truth,
        "predictions": shown.task.target.decode(chosen.indices),
        "confidence": [round(p, 4) for p in chosen.values.tolist()],
        "matrices": [
            {"name": name, "rows": m.values.shape[-1], "cols": m.keys.shape[-1], "beta": m.betas is not None}
            for name, m in steps.layers[0].matrices.items()
        ],
        "layers": len(steps.layers),
        "heads": steps.layers[0].outputs.shape[1],
        # one scale for all steps of a layer's matrix, so that colours keep their meaning
        "scales": [[_scale(m.weights) for m in layer.matrices.values()] for layer in steps.layers],
        "written": [_bytes(_written(layer.matrices.values())) for layer in steps.layers],
    }
    if shown.kind == CODE:
        assert isinstance(shown.task, CodeExecution)
        return data | {"variables": variables(symbols, shown.task.config.semantics)}
    return data | {"nesting": [[n.depth, n.opened, n.value] for n in nesting(symbols)]}


def describe_step(steps: Trace, t: int, layer: int, head: int) -> dict[str, Any]:
    """One step of one layer with all its heads; where the chosen head's reads come from."""
    record = steps.layers[layer]
    return {
        "t": t,
        "layer": layer,
        "head": head,
        "probabilities": [round(p, 5) for p in steps.probabilities[t].tolist()],
        "output": _floats(record.outputs[t]),
        "matrices": [
            {
                "name": name,
                "weights": _floats(m.weights[t]),
                "key": _floats(m.keys[t]),
                "value": _floats(m.values[t]),
                "query": _floats(m.queries[t]),
                "read": _floats(m.reads[t]),
                "write": _floats(m.weights[t] if t == 0 else m.weights[t] - m.weights[t - 1]),
                "beta": None if m.betas is None else [round(b, 4) for b in m.betas[t].tolist()],
                "shares": _floats(m.shares(t)[:, head]),
            }
            for name, m in record.matrices.items()
        ],
    }


def export_step(shown: Shown, steps: Trace, truth: list[str], t: int) -> dict[str, Any]:
    """One step of all layers and heads as plain numbers, to be read by other programs."""
    layers = [
        {
            "output": record.outputs[t].tolist(),
            "matrices": {name: _export(m, t) for name, m in record.matrices.items()},
        }
        for record in steps.layers
    ]
    symbols = shown.task.source.decode(steps.tokens)
    answers = dict(zip(shown.task.target.symbols, steps.probabilities[t].tolist(), strict=False))
    return {
        "model": shown.name,
        "composition": steps.layers[0].composition.name,
        "tokens": symbols,
        "step": t,
        "token": symbols[t],
        "truth": truth[t],
        "prediction": max(answers, key=lambda answer: answers[answer]),
        "probabilities": answers,
        "layers": layers,
    }


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


def _written(matrices: Any) -> Tensor:
    """‖W_t - W_{t-1}‖ over all matrices of a layer, (T, H), with the largest at 1"""
    size = sum((m.weights - m.before).square().sum((-1, -2)) for m in matrices).sqrt()
    return size / size.max().clamp(min=1e-12)


def _scale(weights: Tensor) -> float:
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
