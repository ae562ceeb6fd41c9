"""What the page draws: learning curves, returns of agents, improvements of one model over another, times over a growing size."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rfwp.presets import WIKI_28M, find, is_language
from rfwp.report.atari import (
    COMPARISONS,
    PAPER_TABLES,
    Setting,
    changes,
    improvements,
    is_atari,
    millions,
    our_scores,
    paper_name,
    paper_scores,
)
from rfwp.report.plots import COLOURS, OPS, styles
from rfwp.report.records import Run, choose, devices_and_codes, summarise
from rfwp.report.speed import PASSES, Measurement, made, milliseconds, scaling, slug
from rfwp.report.svg import Axis, Bar, Line, bar_chart, line_chart, linear_axis, log_axis
from rfwp.report.wiki import changes as changes_of_row

LOOKS = {colour: f"model-{model}" for model, colour in COLOURS.items()}
"""The class that has a model's colour."""
OTHER, PAPER = "model-other", ("paper-1", "paper-2")


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    look: str
    dashes: str
    label: str


@dataclass(frozen=True)
class Figure:
    """A chart with its legend, the same in words, and how it was made."""

    id: str
    title: str
    description: str
    svg: str
    keys: tuple[Key, ...]
    made: str


def learning_curves(runs: Sequence[Run]) -> list[Figure]:
    """Validation accuracy over epochs, a figure a table of presets; perplexity over steps, a figure a text and setting."""
    accuracies: dict[str, dict[str, list[Run]]] = {}
    for preset in dict.fromkeys(run.preset for run in runs if not is_language(run.preset)):
        if counted := [run for run in choose(runs, preset).runs if run.curve]:
            accuracies.setdefault(preset.partition("/")[0], {})[preset] = counted
    found = [_curves(f"curves-{table}", table, models) for table, models in sorted(accuracies.items())]
    perplexities: dict[str, dict[str, dict[int, Run]]] = {}
    texts = [run for run in runs if is_language(run.preset) and run.curve]
    # where a seed ran twice, the later run counts
    for run in sorted(texts, key=lambda run: run.time):
        if run.preset in WIKI_28M and changes_of_row(run):
            continue
        perplexities.setdefault(_setting(run), {}).setdefault(run.preset, {})[run.seed] = run
    for number, by_seed in enumerate(perplexities.values(), 1):
        models = {preset: list(seeds.values()) for preset, seeds in by_seed.items()}
        preset, (first, *_) = next(iter(models.items()))
        title = f"{preset.partition('/')[0]}, {first.config['train']['steps']:,} steps"
        found.append(_curves(f"curves-text-{number}", title, models, perplexity=True))
    return found


def returns(runs: Sequence[Run]) -> list[Figure]:
    """Returns of training episodes over agent steps, a figure a game, a line a run."""
    games: dict[str, list[Run]] = {}
    for run in runs:
        if is_atari(run) and len(run.curve) > 1:
            games.setdefault(run.config["environment"]["game"], []).append(run)
    found = []
    for game, mine in sorted(games.items()):
        names = [f"{_model(run.preset)}, {run.config['environment']['protocol']}, seed {run.seed}" for run in mine]
        style = styles({name: run.preset.partition("/")[2] for name, run in zip(names, mine, strict=True)})
        lines = [
            Line(name, LOOKS.get(style[name][0], OTHER), style[name][1], [(x, y) for x, y in run.curve])
            for name, run in zip(names, mine, strict=True)
        ]
        y = linear_axis("return of training episodes", *_range(y for line in lines for _, y in line.points))
        x = linear_axis("agent steps", 0, max(x for line in lines for x, _ in line.points))
        last = {name: run.curve[-1] for name, run in zip(names, mine, strict=True)}
        ends = "; ".join(f"{name}: {score:,.1f} after {millions(int(steps))}" for name, (steps, score) in last.items())
        title = f"{paper_name(game)}: returns while training"
        found.append(_figure(slug(f"returns {game}"), title, f"At the end of training: {ends}.", lines, x, y, made_of_runs(mine)))
    return found


def paper_improvements(model: str, baseline: str) -> list[Figure]:
    """The paper's figure of one comparison, from its own scores: after 50 and after 200 million steps."""
    found = []
    for number, (steps, table) in enumerate(PAPER_TABLES.items(), 1):
        scores = paper_scores(table)
        bars = improvements(scores, model, baseline)
        identity = f"improvement-{model}-over-{baseline}-paper-{number}"
        look = LOOKS.get(COLOURS.get(model, ""), OTHER)
        rows = [(game, [Bar(look, value)]) for game, value in reversed(bars.items())]
        title = f"Paper: {_over(model, baseline)}, after {steps}"
        source = f"The paper's scores (Table {table.removeprefix('table-')}), no runs of ours"
        text = _in_words(bars)
        found.append(Figure(identity, title, text, bar_chart(identity, title, text, rows), (), source))
    return found


def our_improvements(runs: Sequence[Run], model: str, baseline: str) -> list[Figure]:
    """Ours with the paper's beside them, for every setting at which both models have runs of one game."""
    found = []
    printed = {steps: improvements(paper_scores(table), model, baseline) for steps, table in PAPER_TABLES.items()}
    for number, (setting, scores) in enumerate(sorted(our_scores(runs).items()), 1):
        if not (mine := improvements(scores, model, baseline)):
            continue
        look = LOOKS.get(COLOURS.get(model, ""), OTHER)
        rows = []
        for game, value in reversed(mine.items()):
            beside = [Bar(grey, bars[game]) for grey, bars in zip(PAPER, printed.values(), strict=True) if game in bars]
            rows.append((game, [Bar(look, value), *beside]))
        identity = f"improvement-{model}-over-{baseline}-{number}"
        title = f"Here: {_over(model, baseline)}, after {setting}"
        greys = zip(PAPER, printed, strict=True)
        keys = [Key(look, "bar", "here"), *(Key(grey, "bar", f"paper, {steps}") for grey, steps in greys)]
        text = f"Here: {_in_words(mine)} " + " ".join(
            f"Paper after {steps}: {_in_words({game: bar for game, bar in bars.items() if game in mine})}"
            for steps, bars in printed.items()
        )
        pair = (f"atari/{model}", f"atari/{baseline}")
        counted = [run for run in runs if run.preset in pair and is_atari(run) and _is_at(run, setting) and _game(run) in mine]
        chart = bar_chart(identity, title, text, rows)
        found.append(Figure(identity, title, text, chart, tuple(keys), made_of_runs(counted)))
    return found


def comparisons(runs: Sequence[Run]) -> dict[str, list[Figure]]:
    """Ours first, by what is compared, in the order of the paper's figures."""
    return {_over(*pair): [*our_improvements(runs, *pair), *paper_improvements(*pair)] for pair in COMPARISONS}


def scaling_figures(measurements: Sequence[Measurement]) -> list[Figure]:
    """Time, and memory where it is known, as a size grows; both axes are logarithmic."""
    found = []
    for number, ((where, size, fixed), rows) in enumerate(scaling(measurements).items(), 1):
        for name, label, of in (("ms", "ms", "Time"), ("mb", "peak MB beside the inputs", "Memory")):
            points = _by_op(rows, size, name)
            if not points:
                continue
            style = styles({op: OPS.get(op.split(",")[0], "") for op in points})
            lines = [Line(op, LOOKS.get(style[op][0], OTHER), style[op][1], sorted(values)) for op, values in points.items()]
            x = log_axis(size, [px for line in lines for px, _ in line.points], base=2)
            y = log_axis(label, [py for line in lines for _, py in line.points])
            title = f"{of} of ops as {size} grows: {fixed}; {where}"
            unit = "ms" if name == "ms" else "MB"
            text = "; ".join(
                f"{line.label}: {milliseconds(line.points[0][1])} {unit} at {size} = {line.points[0][0]:,}, "
                f"{milliseconds(line.points[-1][1])} {unit} at {size} = {line.points[-1][0]:,}"
                for line in lines
            )
            found.append(_figure(f"scaling-{number}-{name}", title, text + ".", lines, x, y, made(rows)))
    return found


def made_of_runs(runs: Sequence[Run]) -> str:
    """`2 runs, NVIDIA H200, 2026-11-15, code d7a9759`"""
    devices, codes = devices_and_codes(runs)
    days = ", ".join(sorted({run.time[:10] for run in runs if run.time}))
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return ", ".join(part for part in (count, devices, days, f"code {codes}") if part)


def _curves(identity: str, name: str, models: Mapping[str, Sequence[Run]], perplexity: bool = False) -> Figure:
    rank = {model: n for n, model in enumerate(COLOURS)}
    rows = {preset: preset.partition("/")[2].partition(":")[0] for preset in models}
    order = sorted(models, key=lambda preset: (_rank(rows[preset], rank), preset))
    style = styles({preset: rows[preset] for preset in order})
    lines, ends = [], []
    for preset in order:
        band = _band(models[preset], scale=1 if perplexity else 100)
        count = len(models[preset])
        label = f"{_model(preset)} ({count} {'seed' if count == 1 else 'seeds'})"
        points = [(x, mean) for x, _, mean, _ in band]
        edges = [(x, low, high) for x, low, _, high in band] if count > 1 else []
        lines.append(Line(label, LOOKS.get(style[preset][0], OTHER), style[preset][1], points, edges))
        ends.append(f"{label}: {points[-1][1]:.1f}{'' if perplexity else ' %'} at {points[-1][0]:,.0f}")
    runs = [run for group in models.values() for run in group]
    last = max(x for line in lines for x, _ in line.points)
    if perplexity:
        x = linear_axis("training steps", 0, last)
        y = log_axis("validation perplexity", [py for line in lines for _, py in line.points])
    else:
        metrics = {"sequence accuracy" if "sequence accuracy" in run.valid else "accuracy" for run in runs}
        x = linear_axis("epoch", 0, last)
        y = Axis(f"validation {' / '.join(sorted(metrics))} in %", 0, 100, (0, 20, 40, 60, 80, 100))
    text = f"{y.label}, means over seeds, at the last {'step' if perplexity else 'epoch'}: {'; '.join(ends)}."
    return _figure(identity, f"Learning curves, {name}", text, lines, x, y, made_of_runs(runs))


def _is_at(run: Run, setting: Setting) -> bool:
    environment = run.config["environment"]
    found = Setting(run.config["impala"]["steps"], environment["protocol"], tuple(changes(run)))
    return found == setting


def _game(run: Run) -> str:
    return paper_name(run.config["environment"]["game"])


def _figure(identity: str, title: str, text: str, lines: Sequence[Line], x: Axis, y: Axis, how: str) -> Figure:
    keys = tuple(Key(line.look, line.dashes, line.label) for line in lines)
    return Figure(identity, title, text, line_chart(identity, title, text, lines, x, y), keys, how)


def _band(runs: Sequence[Run], scale: float) -> list[tuple[float, float, float, float]]:
    """(epoch, lowest, mean, highest) at the epochs that all runs have."""
    scores = [{epoch: scale * score for epoch, _, score in run.curve} for run in runs]
    epochs = sorted(set.intersection(*(set(run) for run in scores))) or sorted(scores[0])
    found = ((epoch, summarise(run.get(epoch) for run in scores)) for epoch in epochs)
    return [(epoch, one.lowest, one.mean, one.highest) for epoch, one in found if one]


def _setting(run: Run) -> str:
    """What runs of one text have in common when they are drawn together."""
    train = {name: value for name, value in run.config["train"].items() if name not in ("seed", "carry")}
    return json.dumps([run.preset.partition("/")[0], run.data, run.config["text"], train], sort_keys=True)


def _by_op(rows: Sequence[Measurement], size: str, name: str) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for one in rows:
        if value := one.median if name == "ms" else one.peak_mb:
            points.setdefault(f"{one.what.removesuffix(PASSES)}, {one.backend}, {one.dtype}", []).append((one.sizes[size], value))
    return points


def _model(preset: str) -> str:
    """As printed; the versions of a language model keep their names here, and `table/row:variant` is `row, variant`."""
    row, _, variant = preset.partition(":")
    title = row.partition("/")[2] if is_language(preset) else find(row).title
    return f"{title}, {variant}" if variant else title


def _over(model: str, baseline: str) -> str:
    """`RDN over Linear Transformer`; the Atari tables shorten that name to LT."""
    names = (f"lm/{name}" if name == "linear-transformer" else f"atari/{name}" for name in (model, baseline))
    return " over ".join(find(name).title for name in names)


def _in_words(bars: Mapping[str, float]) -> str:
    listed = ", ".join(f"{game} {round(value):+,} %" for game, value in sorted(bars.items(), key=lambda pair: -pair[1]))
    return f"{sum(value > 0 for value in bars.values())} of {len(bars)} games higher: {listed}."


def _rank(model: str, rank: Mapping[str, int]) -> int:
    return next((n for known, n in rank.items() if model.startswith(known)), len(rank))


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)
