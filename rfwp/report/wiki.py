"""Table 1's models on another text than WikiText-103: a table for each number of steps, with the paper's only for their order."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rfwp.config import LanguageTrainConfig, differences, to_dict
from rfwp.presets import WIKI_28M, find, language_run
from rfwp.report.paper import Cell, tables
from rfwp.report.records import Run, summarise
from rfwp.report.tables import Rendered, origin

TEXT, WORDS = "wiki-28m", 27_860_414
"""The training text and its words, line ends included."""
LEGEND = (
    "Perplexity here: mean ± sample standard deviation (number of seeds), - without a run. The training text is not the "
    "paper's: only the order of the models can be compared, 1 for the lowest on the test set."
)
HEADER = ["model", "valid, here", "test, here", "order, here", "paper on WikiText-103, valid", "test", "order", "parameters, M"]


def text_tables(runs: Sequence[Run]) -> list[Rendered]:
    """One for each text and setting that has runs; runs of another number of steps are never in one table."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.preset in WIKI_28M:
            groups.setdefault(_settings(run), []).append(run)
    ordered = sorted(groups.values(), key=lambda group: (group[0].config["train"]["steps"], _settings(group[0])))
    rendered: list[Rendered] = []
    for group in ordered:
        name = f"{TEXT}-{group[0].config['train']['steps']}-steps"
        same = sum(table.id.startswith(name) for table in rendered)
        rendered.append(_render(group, f"{name}-{same + 1}" if same else name))
    return rendered


def write_text_tables(runs: Sequence[Run], folder: Path) -> list[Rendered]:
    """Each as folder/wiki-28m-N-steps.md."""
    rendered = text_tables(runs)
    for table in rendered:
        table.write(folder)
    return rendered


def _settings(run: Run) -> str:
    """What all runs of a table have in common: the text as it was read, and the training without seed and carried state."""
    train = {name: value for name, value in run.config["train"].items() if name not in ("seed", "carry")}
    return json.dumps([run.data, run.config["text"]["segment"], train], sort_keys=True)


def _render(group: list[Run], name: str) -> Rendered:
    counted: dict[tuple[str, int], Run] = {}
    left_out: dict[str, list[int]] = {}
    for run in sorted(group, key=lambda run: run.time):
        if reasons := _reasons(run):
            left_out.setdefault(f"{run.preset} ({', '.join(reasons)})", []).append(run.seed)
        else:
            counted[run.preset, run.seed] = run
    by_preset = {row: [run for (preset, _), run in counted.items() if preset == row] for row in WIKI_28M}
    printed = {row.cells[0].preset: row for row in tables()["table-1"].rows}
    paper = {row: printed[find(base).name] for row, base in WIKI_28M.items()}
    here = _order({row: _mean(runs, "test") for row, runs in by_preset.items()})
    there = _order({row: found.cells[1].mean for row, found in paper.items()})
    rows = []
    for row, runs in by_preset.items():
        valid, test, *_ = paper[row].cells
        numbers = [_ours(runs, "valid"), _ours(runs, "test"), here[row], _printed(valid), _printed(test), there[row]]
        rows.append([paper[row].title, *numbers, f"{runs[0].parameters / 1e6:.1f}" if runs else "-"])
    train = group[0].config["train"]
    title = f"{TEXT}, {train['steps']:,} steps: language models, perplexity on WikiText-103's validation and test sets"
    notes = _notes(list(counted.values()), train)
    for what, seeds in left_out.items():
        notes.append(f"left out, another model, text or context: {what}, seed {' '.join(map(str, sorted(seeds)))}")
    return Rendered(name, title, HEADER, rows, notes, len(counted), LEGEND)


def changes(run: Run) -> list[str]:
    """Where a run is none of its row: another model than Table 1's, or a state cut where the row carries it, or carried."""
    expected = language_run(run.preset)
    found = differences(to_dict(expected.model), run.config["model"])
    carry = run.config["train"].get("carry", False)
    return found if carry == expected.train.carry else [*found, f"train.carry {expected.train.carry} -> {carry}"]


def _reasons(run: Run) -> list[str]:
    """Why a run does not count."""
    found = changes(run)
    return found if run.words == WORDS else [*found, f"a text of {run.words:,} words, expected {WORDS:,}"]


def _mean(runs: Sequence[Run], split: str) -> float | None:
    summary = summarise(run.value("perplexity", split) for run in runs)
    return None if summary is None else summary.mean


def _order(values: dict[str, float | None]) -> dict[str, str]:
    """`1` for the lowest; what has no value has no place."""
    found = sorted((value, name) for name, value in values.items() if value is not None)
    places = {name: str(1 + sum(other < value for other, _ in found)) for value, name in found}
    return {name: places.get(name, "-") for name in values}


def _ours(runs: Sequence[Run], split: str) -> str:
    summary = summarise(run.value("perplexity", split) for run in runs)
    if summary is None:
        return "-"
    spread = "" if summary.std is None else f" ± {summary.std:,.1f}"
    return f"{summary.mean:,.1f}{spread} ({summary.n})"


def _printed(cell: Cell) -> str:
    return "-" if cell.mean is None else f"{cell.mean:.{cell.digits}f}"


def _notes(runs: list[Run], train: dict[str, Any]) -> list[str]:
    if not runs:
        return []
    notes = [origin(runs), f"trained on {WORDS:,} words that are not WikiText-103, read in the order of the text"]
    ignored = ("steps", "seed", "carry")
    if others := differences(to_dict(LanguageTrainConfig()), train, ignored):
        notes.append(f"settings that differ from the paper's: {', '.join(others)}")
    return notes
