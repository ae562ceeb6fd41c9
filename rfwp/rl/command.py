"""What the command `train` does for agents, without printing: configs and folders of runs, and the training itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rfwp.config import AgentConfig, AtariConfig, EnvironmentConfig, GymConfig, MemoryGameConfig, RLRunConfig, replace
from rfwp.errors import InvalidInput
from rfwp.rl.learner import check_impala
from rfwp.rl.options import RLOptions
from rfwp.rl.result import RLFolder, RLResult
from rfwp.rl.trainer import RLTrainer
from rfwp.tasks.environments import make
from rfwp.train.command import EXIT_CODES, parse_changes
from rfwp.train.distributed import is_first, leave, restarted
from rfwp.train.log import Log
from rfwp.train.options import TrainOptions

MEMORY_GAMES: tuple[str, ...] = get_args(get_type_hints(MemoryGameConfig)["game"])
CHOICES = {"auto": "auto", "yes": True, "no": False}


@dataclass(frozen=True)
class Plan:
    """One run and its folder."""

    config: RLRunConfig
    folder: RLFolder


def train(plans: Sequence[Plan], options: TrainOptions, rl: RLOptions, log: Log) -> list[RLResult]:
    """One run after another: a begun one goes on, a finished one is taken as it is. After a signal the last result says which."""
    results = []
    for plan in plans:
        if plan.folder.finished:
            results.append(plan.folder.result())
            if is_first():
                log.say(f"{plan.folder} is finished")
            continue
        trainer = RLTrainer(
            plan.config,
            plan.folder.path,
            device=options.device,
            log=log,
            save_minutes=options.save_minutes,
            seconds=rl.seconds,
            graphs=CHOICES[options.cuda_graph],  # type: ignore[arg-type]
            channels_last=CHOICES[rl.channels_last],  # type: ignore[arg-type]
            compile_stem=rl.compile_stem,
            threads=rl.threads,
        )
        results.append(trainer.run())
        if results[-1].stopped:
            break
    leave()
    return results


def choose_environment(rl: RLOptions) -> EnvironmentConfig:
    """What --game or --env names."""
    if bool(rl.game) == bool(rl.env):
        seen = "both are there" if rl.game else "none is there"
        raise InvalidInput(f"an agent needs --game (Atari, such as pong) or --env (such as CartPole-v1 or recall); {seen}")
    if rl.game:
        return AtariConfig(rl.game)
    if rl.env in MEMORY_GAMES:
        return MemoryGameConfig(rl.env)  # type: ignore[arg-type]
    if rl.env.startswith("ALE/"):
        game = rl.env.removeprefix("ALE/").partition("-")[0]
        raise InvalidInput(f"--env {rl.env} is an Atari game; use --game {game}, which has faster emulators")
    return GymConfig(rl.env)


def plan_runs(base: RLRunConfig, options: TrainOptions) -> list[Plan]:
    """One run a seed, new or begun; whatever cannot work is an error before anything is written."""
    config = changed(base, options)
    seeds = options.seeds or (config.impala.seed,)
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"--seeds {' '.join(map(str, seeds))}: a seed is there twice; give each once")
    environment = config.environment
    where = environment.id if isinstance(environment, GymConfig) else environment.game
    home = options.out or Path("runs") / f"{config.preset}-{where}".replace("/", "-").replace(":", "-")
    alone = options.out is not None and len(seeds) == 1
    plans = []
    for seed in seeds:
        folder = RLFolder(home if alone else home / f"seed-{seed}")
        plans.append(Plan(replace(config, {"impala.seed": seed}), folder))
        folder.check(plans[-1].config)  # type: ignore[arg-type]
    # torchrun may start a run again that has just finished, and of its processes only the first can tell
    if len(plans) == 1 and plans[0].folder.finished and is_first() and not restarted():
        raise InvalidInput(f"{plans[0].folder} holds this run already, finished; use another --out to train it again")
    return plans


def plan_resumed(base: RLRunConfig | None, options: TrainOptions) -> list[Plan]:
    """The run of a folder; a preset or changes that are given beside it must agree with it."""
    assert options.resume is not None
    if options.out is not None:
        raise InvalidInput("--resume goes on in the run's own folder; leave --out away")
    folder = RLFolder(options.resume)
    config = folder.config()
    wanted = changed(base or config, options)
    seeds = options.seeds or (wanted.impala.seed if base is None else config.impala.seed,)
    if len(seeds) > 1:
        raise InvalidInput("--resume takes one run; leave --seeds away")
    folder.check(replace(wanted, {"impala.seed": seeds[0]}))
    if folder.finished:
        raise InvalidInput(f"{folder} is finished; see: rfwp eval {folder}")
    return [Plan(config, folder)]


def changed(base: RLRunConfig, options: TrainOptions) -> RLRunConfig:
    """With --steps and --set, and the agent's sizes those of the environment."""
    for name in ("epochs", "data", "text", "vocabulary"):
        if getattr(options, name, None):
            raise InvalidInput(f"--{name} is not for agents; leave it away")
    changes = parse_changes(options.set)
    if options.steps is not None:
        changes["impala.steps"] = options.steps
    config: RLRunConfig = replace(base, changes)
    check_impala(config.impala)
    return fit(config, keep=set(changes))


def fit(config: RLRunConfig, keep: set[str] | frozenset[str] = frozenset()) -> RLRunConfig:
    """Actions and observations of the agent are the environment's, unless they were given; an Atari game has its own name."""
    environment = make(config.environment, 1, 1)
    environment.close()
    sizes: dict[str, Any] = {"actions": environment.actions} | _observed(environment.shape, config.environment)
    changes: dict[str, Any] = {f"agent.{name}": size for name, size in sizes.items() if f"agent.{name}" not in keep}
    if isinstance(config.environment, AtariConfig):
        changes["environment.game"] = environment.config.game  # type: ignore[attr-defined]
    fitted: RLRunConfig = replace(config, changes)
    return fitted


def _observed(shape: tuple[int, ...], environment: EnvironmentConfig) -> dict[str, int]:
    if len(shape) == 1:
        # what a vector does not need has the defaults, so that equal agents have equal configs
        plain = AgentConfig()
        return {"vector": shape[0], "frames": plain.frames, "pixels": plain.pixels}
    frames, height, width = shape
    if height != width:
        raise InvalidInput(f"{environment} shows images of {height} x {width}; agents see square ones only")
    return {"vector": 0, "frames": frames, "pixels": height}


def summary(results: Sequence[RLResult]) -> list[tuple[str, str]]:
    """Rows for a table: returns of the last 100 training episodes of each seed, steps and speed."""
    titles = {"return": "return of games", "return_life": "return of lives"}
    rows = [
        (title, ", ".join(f"{result.metrics[name]:.2f}" for result in results if name in result.metrics))
        for name, title in titles.items()
        if any(name in result.metrics for result in results)
    ]
    rows.append(("agent steps", ", ".join(f"{result.steps:,}" for result in results)))
    return [*rows, ("steps/s", ", ".join(f"{result.steps_per_s:,.0f}" for result in results))]


def exit_code(results: Sequence[RLResult]) -> int:
    return EXIT_CODES.get(results[-1].stopped or "", 0)
