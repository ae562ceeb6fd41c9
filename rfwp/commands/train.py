"""`rfwp train`: one run, or one a seed, of whatever kind."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import tyro

from rfwp.commands.console import console, listing, show_written
from rfwp.config import AnyRunConfig, LanguageRunConfig, RLRunConfig, RunConfig, SequenceConfig, TrainConfig
from rfwp.errors import InvalidInput
from rfwp.presets import TASKS, agent_run, is_agent, is_language, language_run, model_config, run_config
from rfwp.rl.options import RLOptions
from rfwp.train.distributed import end_process, is_first
from rfwp.train.options import TrainOptions

if TYPE_CHECKING:
    from rfwp.train.plan import Kind


def train(
    preset: Annotated[str, tyro.conf.Positional] = "",
    options: TrainOptions = TrainOptions(),  # noqa: B008
    agent: RLOptions = RLOptions(),  # noqa: B008
) -> None:
    """Train a preset, or a preset's model on your own sequences; stop with Ctrl-C, go on with the same command or --resume.

    The best checkpoint on the validation set is tested at the end. Agents play: rfwp train atari/rdn --game pong.
    With several processes: torchrun --nproc-per-node N -m rfwp train PRESET --out RUN

    Exit code 130 or 143: stopped by Ctrl-C, or by SIGTERM or a closed terminal, and saved.

    Args:
        preset: For example code-execution-3/delta-rnn; see: rfwp presets. `rl` with --core is an agent in any environment.
    """
    # imported here because the other commands should start quickly
    from rfwp.train.log import ConsoleLog
    from rfwp.train.plan import exit_code, plan_resumed, plan_runs, train_all

    base = _base(preset, options, agent)
    kind = _kind(base, preset, options, agent)
    if options.resume is not None:
        plans = plan_resumed(base, options, kind)
    elif base is None:
        raise InvalidInput("train needs a preset, --data FOLDER with --model PRESET, or --resume RUN; see: rfwp presets")
    else:
        config = kind.change(base, options)
        plans = plan_runs(config, options, _name(config, preset, options), kind)
    results = train_all(plans, options, ConsoleLog(console()), kind)
    code = exit_code(results)
    # what a signal stopped has said how to go on
    if is_first() and not code:
        title, rows = kind.summary(results)
        console().print(listing((title, ""), rows))
        for plan in plans:
            show_written(console(), plan.folder)
    end_process(code, at_once=options.shard)


def _base(preset: str, options: TrainOptions, agent: RLOptions) -> AnyRunConfig | None:
    """The run before changes: a preset's, or that of a preset's model on files; None: only a folder can say."""
    if preset == "rl" or is_agent(preset):
        return _agent_base(preset, agent)
    # a run that goes on has a model, and --data says where its data are now
    moved = options.resume is not None and not options.model
    if bool(options.data) != bool(options.model) and not moved:
        raise InvalidInput("--data FOLDER and --model PRESET go together: what to learn, and which model learns it")
    if options.data is not None and not moved:
        return _files_base(preset, options)
    if is_language(preset):
        return language_run(preset)
    return run_config(preset) if preset else None


def _agent_base(preset: str, agent: RLOptions) -> RLRunConfig:
    from rfwp.rl.changes import choose_environment

    row = f"atari/{agent.core or 'rdn'}" if preset == "rl" else preset
    base = agent_run(row, choose_environment(agent), agent.recipe)
    # the paper's agents are those that play Atari games
    return replace(base, preset=f"rl/{row.partition('/')[2]}") if agent.env else base


def _files_base(preset: str, options: TrainOptions) -> RunConfig:
    from rfwp.train.changes import files_run

    assert options.data is not None
    if preset:
        raise InvalidInput(f"--data trains on your files, and {preset} has a task of its own; give one of them")
    model = model_config(options.model)
    if not isinstance(model, SequenceConfig):
        raise InvalidInput(f"the model of {options.model} does not read tokens; take one of: {', '.join(TASKS)}")
    table = options.model.partition("/")[0]
    return files_run(model, run_config(options.model).train if table in TASKS else TrainConfig(), options.data)


def _kind(base: AnyRunConfig | None, preset: str, options: TrainOptions, agent: RLOptions) -> "Kind":
    """That of the preset, or of the run that is to be resumed."""
    from rfwp.lm import changes as lm
    from rfwp.rl import changes as rl
    from rfwp.train import changes as sequences
    from rfwp.train.folder import read_run_config

    config = read_run_config(options.resume) if base is None and options.resume is not None else base
    if isinstance(config, RLRunConfig):
        if agent.core and preset != "rl":
            what = preset or "a run"
            raise InvalidInput(f"--core {agent.core} goes with rl: rfwp train rl --core {agent.core}; {what} has a core")
        if base is None and agent.recipe != RLOptions().recipe:
            raise InvalidInput(f"--recipe {agent.recipe} is for a new run; {options.resume} keeps its own")
        return rl.kind_of(agent)
    if agent != RLOptions() and (config is not None or options.resume is None):
        raise InvalidInput("--game, --env and the like are for agents: rfwp train atari/rdn --game pong; see: rfwp presets atari")
    return lm.KIND if isinstance(config, LanguageRunConfig) else sequences.KIND


def _name(config: AnyRunConfig, preset: str, options: TrainOptions) -> str:
    """What a run is called if it has no folder."""
    from rfwp.rl.changes import name_of

    if isinstance(config, RLRunConfig):
        return name_of(config)
    return preset if options.data is None else f"{options.data.resolve().name}-{options.model}"
