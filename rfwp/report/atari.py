"""Atari scores: the paper's, ours beside them with the steps that they had, and improvements of one model over another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rfwp.config import AtariConfig, differences, to_dict
from rfwp.presets import RECIPES, agent_run, find
from rfwp.report.paper import ATARI_MODELS, Cell, tables
from rfwp.report.records import Run, summarise
from rfwp.report.tables import Rendered, origin

KIND = "rlrun"
PAPER_TABLES = {"50 M steps": "table-9", "200 M steps": "table-10"}
COMPARISONS = (
    ("rdn", "linear-transformer"),
    ("rdn", "lstm"),
    ("feedforward", "lstm"),
    ("rdn", "delta-net"),
    ("delta-rnn", "lstm"),
    ("rdn", "delta-rnn"),
)
"""A model and the one that it is compared with, in the order of the paper's figures."""

Scores = Mapping[str, Mapping[str, float]]
"""By game, as the paper spells it, and model."""


@dataclass(frozen=True, order=True)
class Setting:
    """Runs of one setting can be compared with each other."""

    steps: int
    protocol: str
    changes: tuple[str, ...] = ()
    """Of training and environment, from what the paper's code had."""

    @property
    def how(self) -> str:
        return ", ".join((self.protocol, *self.changes))

    def __str__(self) -> str:
        return f"{millions(self.steps)} steps, {self.how}"


def millions(steps: int) -> str:
    """`7.5 million`; a run is named by the steps that it had, never by the paper's."""
    return f"{steps / 1e6:,.3g} million"


def is_atari(run: Run) -> bool:
    return run.config.get("kind") == KIND and run.config.get("environment", {}).get("kind") == "atari" and "score" in run.metrics


def changes(run: Run) -> list[str]:
    """`impala.lr 0.0006 -> 0.001`: where a run differs from its preset's in this game, but for its steps and seed.

    By another recipe than the paper's: `recipe short`, and where it differs from that, whatever is shorter to say.
    """
    environment = AtariConfig(run.config["environment"]["game"], run.config["environment"]["protocol"])
    # the game decides the sizes
    ignored = ("agent.actions", "agent.frames", "agent.pixels", "impala.steps", "impala.seed")
    found = []
    for recipe in RECIPES:
        expected = to_dict(agent_run(run.preset, environment, recipe))
        named = [] if recipe == "paper" else [f"recipe {recipe}"]
        found.append(named + differences(expected, run.config, ignore=ignored))
    return min(found, key=len)


def paper_scores(table: str) -> dict[str, dict[str, float]]:
    """The printed means of table-9 (50 million steps) or table-10 (200 million)."""
    rows = tables()[table].rows
    return {
        row.title: {model: cell.mean for model, cell in zip(ATARI_MODELS, row.cells, strict=True) if cell.mean is not None}
        for row in rows
    }


def our_scores(runs: Iterable[Run]) -> dict[Setting, dict[str, dict[str, float]]]:
    """The mean over seeds, by setting, game and model."""
    found: dict[Setting, dict[str, dict[str, float]]] = {}
    for (setting, game, model), mine in _grouped(runs).items():
        summary = summarise(run.metrics["score"] for run in mine)
        assert summary is not None
        found.setdefault(setting, {}).setdefault(game, {})[model] = summary.mean
    return found


def improvements(scores: Scores, model: str, baseline: str) -> dict[str, float]:
    """(score of the model - score of the baseline) / |score of the baseline| in %, by game, the lowest first.

    A game that lacks one of them, or whose baseline scores 0, is left out. Without the bars around it the divisor would turn
    the sign for games like Pong, whose scores are negative at first; the paper's are all positive.
    """
    found = {
        game: 100 * (by_model[model] - by_model[baseline]) / abs(by_model[baseline])
        for game, by_model in scores.items()
        if model in by_model and by_model.get(baseline)
    }
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def render_atari(runs: Sequence[Run]) -> Rendered:
    """A line for every game, model and setting that has runs, with the paper's scores beside it."""
    grouped = _grouped(runs)
    printed = {title: _printed_cells(table) for title, table in PAPER_TABLES.items()}
    games = list(paper_scores("table-9"))
    rank = {game: n for n, game in enumerate(games)} | {model: n for n, model in enumerate(ATARI_MODELS)}
    order = sorted(grouped, key=lambda key: (rank.get(key[1], len(games)), key[1], key[0], rank.get(key[2], len(games)), key[2]))
    rows = []
    for setting, game, model in order:
        mine = grouped[setting, game, model]
        cells = [_printed(printed[title].get((game, model))) for title in PAPER_TABLES]
        title = find(mine[0].preset).title
        rows.append([game, title, millions(setting.steps), setting.how, _in_training(mine), _ours(mine), *cells])
    header = ["game", "model", "steps here", "settings here", "in training", "score here"]
    header += [f"paper, {title}" for title in PAPER_TABLES]
    return Rendered("atari", "Atari, scores of tests", header, rows, _notes(runs), sum(map(len, grouped.values())), LEGEND)


LEGEND = (
    "Here: one seed, mean ± population standard deviation of the means of the test's runs, as the paper prints it; of several "
    "seeds, mean ± sample standard deviation over them (their number). Steps are agent steps, four frames each. paper_code "
    "scores lives, standard whole games. In training: mean of the last 100 of these, with actions drawn from the agent's "
    "probabilities; the test takes the most probable ones. LT: Linear Transformer. "
    "The paper's scores are those of far longer trainings."
)


def write_atari(runs: Sequence[Run], folder: Path) -> Rendered:
    """As folder/atari.md, where there are runs."""
    table = render_atari(runs)
    if table.runs:
        table.write(folder)
    return table


def paper_name(game: str) -> str:
    """`kung_fu_master` -> `Kung-Fu Master`; a game that the paper does not have keeps its name."""
    known = {_letters(title): title for title in paper_scores("table-9")}
    return known.get(_letters(game), game)


def _grouped(runs: Iterable[Run]) -> dict[tuple[Setting, str, str], list[Run]]:
    """Runs at the same setting, by game and model; where a seed ran twice, the later run counts.

    An agent that is not its preset's is left out.
    """
    found: dict[tuple[Setting, str, str], dict[int, Run]] = {}
    for run in sorted(filter(is_atari, runs), key=lambda run: run.time):
        environment, changed = run.config["environment"], changes(run)
        if _of_the_agent(changed):
            continue
        setting = Setting(run.config["impala"]["steps"], environment["protocol"], tuple(changed))
        # the large agent has a preset table of its own
        model = run.preset.partition("/")[2] + ("-large" if run.preset.startswith("atari-large/") else "")
        found.setdefault((setting, paper_name(environment["game"]), model), {})[run.seed] = run
    return {key: [by_seed[seed] for seed in sorted(by_seed)] for key, by_seed in found.items()}


def _printed_cells(table: str) -> dict[tuple[str, str], Cell]:
    rows = tables()[table].rows
    return {(row.title, model): cell for row in rows for model, cell in zip(ATARI_MODELS, row.cells, strict=True)}


def _printed(cell: Cell | None) -> str:
    if cell is None or cell.mean is None:
        return "-"
    return f"{cell.mean:,.{cell.digits}f}" + ("" if cell.std is None else f" ± {cell.std:,.{cell.digits}f}")


def _in_training(runs: Sequence[Run]) -> str:
    """Of lives, if these are what the test scores, otherwise of whole games."""
    summary = summarise(run.metrics.get("return_life", run.metrics.get("return")) for run in runs)
    return "-" if summary is None else f"{summary.mean:,.1f}"


def _ours(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        mean, std = runs[0].metrics["score"], runs[0].metrics.get("score std")
    else:
        summary = summarise(run.metrics["score"] for run in runs)
        assert summary is not None
        mean, std = summary.mean, summary.std
    spread = "" if std is None else f" ± {std:,.1f}"
    return f"{mean:,.1f}{spread}" + (f" ({len(runs)} seeds)" if len(runs) > 1 else "")


def _notes(runs: Sequence[Run]) -> list[str]:
    agents = [(run, _of_the_agent(changes(run))) for run in runs if is_atari(run)]
    others = dict.fromkeys(f"{run.preset} ({', '.join(changed)})" for run, changed in agents if changed)
    left_out = [f"left out, another agent: {what}" for what in others]
    counted = [run for run, changed in agents if not changed]
    return [origin(counted), *left_out] if counted else left_out


def _of_the_agent(changed: Sequence[str]) -> list[str]:
    return [change for change in changed if change.startswith("agent.")]


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
