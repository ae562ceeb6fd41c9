"""`rfwp eval`: the test of a run, whatever its kind."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rfwp.commands.console import console, listing, show_written
from rfwp.config import LanguageRunConfig, RLRunConfig
from rfwp.errors import InvalidInput, MissingExtra
from rfwp.rl.eval_options import AgentEvalOptions
from rfwp.train.options import EvalOptions

if TYPE_CHECKING:
    from rfwp.train.log import ConsoleLog


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    options: EvalOptions = EvalOptions(),  # noqa: B008
    agent: AgentEvalOptions = AgentEvalOptions(),  # noqa: B008
) -> None:
    """Evaluate a run's best checkpoint, or show what it says to a sequence of your own; an agent plays.

    Args:
        run: The folder that `rfwp train` made, or the name of a model that comes with rfwp: code-execution-5.
    """
    # imported here because the other commands should start quickly
    from rfwp.train.folder import read_run_config
    from rfwp.train.log import ConsoleLog
    from rfwp.train.trained import is_packaged

    log, config = ConsoleLog(console(stderr=True)), read_run_config(run)
    if isinstance(config, RLRunConfig):
        _evaluate_agent(run, options, agent, log)
        return
    # of what is no run at all that is said below
    known = config is not None or is_packaged(run)
    if agent != AgentEvalOptions() and known:
        raise InvalidInput("--episodes, --runs, --protocol and the like are for agents; leave them away")
    if isinstance(config, LanguageRunConfig):
        _evaluate_text(run, options, log)
        return
    if known and (options.stride is not None or options.text or options.held_out):
        raise InvalidInput("--stride, --text and --held-out are for language models; leave them away")
    _evaluate_sequences(run, options, log)


def _evaluate_sequences(run: Path, options: EvalOptions, log: "ConsoleLog") -> None:
    """The metrics of a split, or what the model says to the user's own sequence."""
    from rfwp.train.trained import answer, evaluate_run

    if options.input is None:
        metrics = evaluate_run(run, options, log)
        console().print(listing((options.split, ""), ((name, f"{100 * value:.2f} %") for name, value in metrics.items())))
        return
    said = answer(run, options, log)
    rows = [(s.token, s.prediction, "?" if s.truth is None else s.truth, "wrong" if s.wrong else "") for s in said]
    console().print(listing(("token", "prediction", "truth", ""), rows))


def _evaluate_agent(run: Path, options: EvalOptions, agent: AgentEvalOptions, log: "ConsoleLog") -> None:
    """The mean score of each run of the test, and of all of them."""
    from rfwp.rl.trained import evaluate_trained, load_agent, rows, write_evaluation

    if replace(options, device="auto") != EvalOptions():
        raise InvalidInput("--split, --input and --stride are not for agents, nor are places of data; see: rfwp eval --help")
    trained = load_agent(run, options.device, log)
    # on a terminal, for as long as it takes
    with log.console.status(f"playing {agent.runs} x {agent.episodes} episodes"):
        found = evaluate_trained(trained, agent)
    console().print(listing(("test", ""), rows(trained, found)))
    show_written(console(), write_evaluation(trained, found))


def _evaluate_text(run: Path, options: EvalOptions, log: "ConsoleLog") -> None:
    """Perplexity, and the plot of the loss at each position of a segment."""
    from rfwp.lm.trained import evaluate_run, keep
    from rfwp.report.plots import plot_positions

    found = evaluate_run(run, options, log)
    # before anything is written, which a folder may refuse
    console().print(listing((found.split, ""), found.rows()))
    numbers = keep(found, run)
    try:
        title = f"{run.name}: {found.name}"
        files = plot_positions(found.by_position, run / f"loss-by-position-{found.name}", title)
    except MissingExtra as error:
        # the numbers are there, and eval-SPLIT.json has what the plot would show
        print(f"rfwp: {error}", file=sys.stderr)
        files = []
    for path in (numbers, *files):
        show_written(console(), path)
