"""The agent of a run, and the paper's test of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfwp.config import AtariConfig, RLRunConfig, to_dict
from rfwp.errors import InvalidFile
from rfwp.models import Agent
from rfwp.rl.eval_options import AgentEvalOptions, WatchOptions
from rfwp.rl.evaluate import Evaluation, evaluate, with_protocol
from rfwp.rl.result import RLFolder
from rfwp.rl.saved import load_weights
from rfwp.rl.watch import Watched
from rfwp.train.checkpoint import LAST, PREVIOUS, load, replace_file
from rfwp.train.log import Log
from rfwp.train.speed import find_device

AUTHORS_DROP = ("battlezone", "upndown")
"""Games of which the authors' test leaves out episodes that fall below zero."""


@dataclass(frozen=True)
class Trained:
    """An agent as its run left it."""

    run: Path
    config: RLRunConfig
    agent: Agent
    steps: int
    """Agent steps that it has learned from."""


def load_agent(run: Path, device: str, log: Log) -> Trained:
    """The last whole checkpoint of a run, finished or not."""
    folder, where = RLFolder(run), find_device(device)
    config = folder.config()
    found = load(run, (LAST, PREVIOUS), log.warn)
    if found is None:
        raise InvalidFile(f"{run} has no checkpoint yet: the first one comes some minutes after the start of the training")
    agent = Agent(config.agent)
    load_weights(agent, found.model, run)
    return Trained(run, config, agent.to(where).eval(), int(found.state["steps"]))


def evaluate_trained(trained: Trained, options: AgentEvalOptions) -> Evaluation:
    """The paper's test of a trained agent."""
    return evaluate(
        trained.agent,
        trained.config.environment,
        options.episodes,
        options.runs,
        greedy=not options.sample,
        protocol=options.protocol,
        drop_negative=drops_negative(trained.config, options),
        environments=options.environments,
        seed=options.seed,
    )


def drops_negative(config: RLRunConfig, options: AgentEvalOptions) -> bool:
    """What `authors` means for this run."""
    if options.drop_negative != "authors":
        return options.drop_negative == "yes"
    game = config.environment
    if not isinstance(game, AtariConfig):
        return False
    protocol = game.protocol if options.protocol == "as trained" else options.protocol
    return protocol == "paper_code" and "".join(filter(str.isalnum, game.game.lower())) in AUTHORS_DROP


def write_evaluation(trained: Trained, found: Evaluation) -> Path:
    """All returns, and what they are of, as a file in the run's folder."""
    protocol = f"-{found.environment.protocol}" if isinstance(found.environment, AtariConfig) else ""
    path = trained.run / f"eval{protocol}{'' if found.greedy else '-sampled'}.json"
    replace_file(path, (json.dumps(describe(trained, found), indent=2, allow_nan=False) + "\n").encode())
    return path


def describe(trained: Trained, found: Evaluation) -> dict[str, Any]:
    """Plain data."""
    return {
        "preset": trained.config.preset,
        "steps": trained.steps,
        "environment": to_dict(found.environment),
        "greedy": found.greedy,
        "mean": found.mean,
        "std": found.std,
        "means": found.means,
        "dropped": found.dropped,
        "returns": [list(run) for run in found.returns],
    }


def rows(trained: Trained, found: Evaluation) -> list[tuple[str, str]]:
    """For a table."""
    protocol = [("protocol", found.environment.protocol)] if isinstance(found.environment, AtariConfig) else []
    episodes = f"{len(found.returns)} x {len(found.returns[0])}"
    dropped = [("left out, below zero", str(found.dropped))] if found.dropped else []
    return [
        ("score", f"{found.mean:,.2f} ± {found.std:,.2f}"),
        ("runs", ", ".join(f"{mean:,.2f}" for mean in found.means)),
        ("episodes", episodes + ("" if found.greedy else ", actions sampled")),
        *dropped,
        *protocol,
        ("after agent steps", f"{trained.steps:,}"),
    ]


def watched(trained: Trained, options: WatchOptions) -> Watched:
    """A game of a trained agent, to look at."""
    environment = with_protocol(trained.config.environment, options.protocol, trained.config.agent.actions)
    return Watched(trained.agent, environment, seed=options.seed, greedy=not options.sample)
