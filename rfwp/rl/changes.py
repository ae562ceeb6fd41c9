"""What the options of `rfwp train` make of the config of an agent's run."""

from typing import Any

from rfwp.config import (
    AgentConfig,
    AtariConfig,
    EnvironmentConfig,
    GymConfig,
    MemoryGameConfig,
    RLRunConfig,
    parse_changes,
    replace,
)
from rfwp.errors import InvalidInput
from rfwp.rl.learner import check_impala
from rfwp.rl.options import RLOptions
from rfwp.rl.result import RLFolder, summary
from rfwp.rl.trainer import RLTrainer
from rfwp.tasks.atari import PAPER_GAMES
from rfwp.tasks.environments import MEMORY_GAMES, make
from rfwp.train.options import TrainOptions
from rfwp.train.plan import Kind

CHOICES = {"auto": "auto", "yes": True, "no": False}


def kind_of(rl: RLOptions) -> Kind:
    """The runs of agents, trained as these options say."""

    def settings(options: TrainOptions) -> dict[str, Any]:
        return {
            "seconds": rl.seconds,
            "graphs": CHOICES[options.cuda_graph],
            "channels_last": CHOICES[rl.channels_last],
            "compile_stem": rl.compile_stem,
            "side_by_side": CHOICES[rl.side_by_side],
            "threads": rl.threads,
        }

    def change(base: RLRunConfig, options: TrainOptions) -> RLRunConfig:
        return changed(in_environment(base, rl), options)

    return Kind(change, RLTrainer, settings, RLFolder, "impala.seed", summary)


def choose_environment(rl: RLOptions) -> EnvironmentConfig:
    """What --game or --env names."""
    if bool(rl.game) == bool(rl.env):
        seen = "both are there" if rl.game else "none is there"
        raise InvalidInput(f"an agent needs --game (Atari, such as pong) or --env (such as CartPole-v1 or recall); {seen}")
    if rl.game:
        return AtariConfig(rl.game)
    if rl.env in MEMORY_GAMES:
        return MemoryGameConfig(rl.env)  # type: ignore[arg-type]
    if rl.env.startswith("ALE/") or rl.env in PAPER_GAMES:
        game = rl.env.removeprefix("ALE/").partition("-")[0]
        raise InvalidInput(f"--env {rl.env} is an Atari game; use --game {game}, which has faster emulators")
    return GymConfig(rl.env)


def in_environment(config: RLRunConfig, rl: RLOptions) -> RLRunConfig:
    """In the one that --game or --env names, if they name one: of the same sort it keeps its other settings."""
    if not (rl.game or rl.env):
        return config
    chosen = choose_environment(rl)
    if type(chosen) is not type(config.environment):
        moved: RLRunConfig = replace(config, {"environment": chosen})
    else:
        name = "id" if isinstance(chosen, GymConfig) else "game"
        moved = replace(config, {f"environment.{name}": getattr(chosen, name)})
    return moved


def name_of(config: RLRunConfig) -> str:
    """`atari/rdn-pong`: what a run is called if it has no folder."""
    environment = config.environment
    return f"{config.preset}-{environment.id if isinstance(environment, GymConfig) else environment.game}"


def changed(base: RLRunConfig, options: TrainOptions) -> RLRunConfig:
    """With --steps and --set, and the agent's sizes those of the environment."""
    for name in ("epochs", "data", "model", "text", "held_out", "vocabulary", "checkpoint_blocks", "shard"):
        if getattr(options, name):
            raise InvalidInput(f"--{name.replace('_', '-')} is not for agents; leave it away")
    if options.compile != "auto":
        raise InvalidInput(f"--compile {options.compile} is not for agents; leave it away, or try --compile-stem")
    if options.pack != "auto":
        raise InvalidInput(f"--pack {options.pack} is not for agents, whose unrolls have no padding; leave it away")
    changes = parse_changes(options.set)
    if options.steps is not None:
        changes["impala.steps"] = options.steps
    config: RLRunConfig = replace(base, changes)
    check_impala(config.impala)
    return fit(config, keep=set(changes))


def fit(config: RLRunConfig, keep: set[str] | frozenset[str] = frozenset()) -> RLRunConfig:
    """Actions and observations of the agent are the environment's, those that were given too; an Atari game has its own name."""
    environment = make(config.environment, 1, 1)
    environment.close()
    sizes: dict[str, Any] = {"actions": environment.actions} | _observed(environment.shape, config.environment)
    for name, size in sizes.items():
        if f"agent.{name}" in keep and getattr(config.agent, name) != size:
            raise InvalidInput(f"agent.{name}={getattr(config.agent, name)}, but this environment needs {size}; leave it away")
    changes: dict[str, Any] = {f"agent.{name}": size for name, size in sizes.items()}
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
