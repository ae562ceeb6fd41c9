"""The command line: `rfwp --help`."""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

import rfwp
from rfwp.bench.options import OpsOptions, PlotOptions, TrainOptions
from rfwp.bench.options import RLOptions as RLBenchOptions
from rfwp.config import (
    BlocksConfig,
    FWPConfig,
    HighwayConfig,
    LanguageRunConfig,
    LSTMConfig,
    ModelConfig,
    RunConfig,
    SequenceConfig,
    TrainConfig,
    to_dict,
)
from rfwp.errors import InvalidInput, MissingExtra, RFWPError, missing_extra, unknown
from rfwp.fwp import Composition
from rfwp.lm.generate_options import GenerateOptions
from rfwp.presets import TASKS, Preset, agent_run, find, is_agent, is_language, language_run, model_config, presets, run_config
from rfwp.reproduce.options import ReproduceOptions
from rfwp.rl.eval_options import AgentEvalOptions, WatchOptions
from rfwp.rl.options import RLOptions
from rfwp.train.distributed import end_process, is_first
from rfwp.train.options import EvalOptions
from rfwp.train.options import TrainOptions as RunOptions

if TYPE_CHECKING:
    from rfwp.report.records import Run
    from rfwp.train.command import Plan
    from rfwp.train.log import ConsoleLog

DESCRIPTION = """Fast weight programmers: neural nets whose slow net rewrites, at every step, the weights of a fast net.

Start here:
  rfwp presets                    every model of the paper, with its parameter count here and there
  rfwp presets code-execution-5   one table of them
  rfwp show lm/rdn                one model: its wiring, its parameters, its config
  rfwp bench train --quick        how fast a training step is here
  rfwp train listops-10/rdn       train one of them; rfwp eval RUN tests it
  rfwp train atari/rdn --game pong   an agent learns a game
  rfwp generate RUN               go on with a text; rfwp export RUN FOLDER hands the model to transformers
  rfwp reproduce table-2 --jobs 4 train what is missing of a table; rfwp report shows it beside the paper's
  rfwp watch RUN                  a video of an agent's game
  rfwp play                       watch a model write and read its fast weights, on a local web page
"""

app = tyro.extras.SubcommandApp()
COMMANDS = ("presets", "show", "bench", "train", "eval", "reproduce", "report", "generate", "export", "play", "watch")


@app.command(name="presets")
def list_presets(table: Annotated[str, tyro.conf.Positional] = "") -> None:
    """List the models of the paper's tables: name, systematic name, parameters here | in the paper.

    Args:
        table: Only this table, for example lm or code-execution-5; all of them if left away.
    """
    chosen = [p for p in presets().values() if not table or p.name.split("/")[0] == table]
    if not chosen:
        raise unknown("table", table, {name.split("/")[0] for name in presets()})
    listing = Table(box=None, header_style="bold", pad_edge=False)
    listing.add_column("preset", style="cyan", no_wrap=True)
    listing.add_column("systematic name", overflow="ellipsis", no_wrap=True)
    listing.add_column("parameters here", justify="right", no_wrap=True)
    listing.add_column("paper", justify="right", no_wrap=True)
    listing.add_column("variants", style="dim", overflow="ellipsis", no_wrap=True)
    for preset in chosen:
        listing.add_row(
            preset.name, systematic_name(preset.model), f"{count(preset.model):,}", preset.printed_parameters, variants(preset)
        )
    _console().print(listing)
    _console().print(
        f"\n{len(chosen)} presets. A variant goes behind a colon: rfwp show {chosen[0].name}{_example(chosen)}", style="dim"
    )


@app.command
def show(name: Annotated[str, tyro.conf.Positional]) -> None:
    """Show one preset: what it is, where its parameters are, and its config as JSON.

    Args:
        name: Preset, with or without a variant: lm/rdn, lm/delta-mlp-b:live.
    """
    config = model_config(name)
    preset = find(name.partition(":")[0])
    model = rfwp.build(config, device="meta")
    console = _console()
    console.print(f"[bold]{name}[/]  {preset.title}: {systematic_name(config)}")
    console.print(f"{count(config):,} parameters here | {preset.printed_parameters} in the paper")
    for part, module in model.named_children():
        size = sum(p.numel() for p in module.parameters())
        if size:
            console.print(f"  {part:<12} {size:>12,}")
    if preset.variants:
        console.print(f"variants: {variants(preset)}")
    console.print_json(json.dumps(to_dict(config)))


Benchmark = (
    Annotated[OpsOptions, tyro.conf.subcommand("ops")]
    | Annotated[TrainOptions, tyro.conf.subcommand("train")]
    | Annotated[RLBenchOptions, tyro.conf.subcommand("rl")]
    | Annotated[PlotOptions, tyro.conf.subcommand("plot"), tyro.conf.PositionalRequiredArgs]
)


@app.command
def bench(what: Benchmark) -> None:
    """Time the ops, or whole training steps, beside PyTorch's LSTM and attention; every kernel is checked first.

    Exit code 1: something failed its check and was not timed.
    """
    # imported here because the other commands should start quickly
    from rfwp.bench.run import run_benchmark
    from rfwp.bench.table import table

    console = _console()
    outcome = run_benchmark(what, lambda line: console.print(line, style="dim"))
    console.print(table(outcome.rows))
    for text in outcome.texts:
        console.print(f"\n{text}", markup=False, highlight=False)
    for path in outcome.files:
        console.print(f"-> {path}", style="dim")
    for failure in outcome.failures:
        print(f"rfwp: check failed: {failure}", file=sys.stderr)
    if outcome.failures:
        sys.exit(1)


@app.command
def train(
    preset: Annotated[str, tyro.conf.Positional] = "",
    options: RunOptions = RunOptions(),  # noqa: B008
    agent: RLOptions = RLOptions(),  # noqa: B008
) -> None:
    """Train a preset, or a preset's model on your own sequences; stop with Ctrl-C, go on with the same command or --resume.

    The best checkpoint on the validation set is tested at the end. Agents play: rfwp train atari/rdn --game pong.
    With several processes: torchrun --nproc-per-node N -m rfwp train PRESET --out RUN

    Exit code 130 or 143: stopped by Ctrl-C or SIGTERM, and saved.

    Args:
        preset: For example code-execution-3/delta-rnn; see: rfwp presets. `rl` with --core is an agent in any environment.
    """
    # imported here because the other commands should start quickly
    if _is_agent_run(preset, options):
        _train_agent(preset, options, agent)
    elif agent != RLOptions():
        raise InvalidInput("--game, --env and the like are for agents: rfwp train atari/rdn --game pong; see: rfwp presets atari")
    from rfwp.lm import command as lm
    from rfwp.train import command
    from rfwp.train.log import ConsoleLog

    base = _base(preset, options)
    kind = lm.KIND if lm.is_language_run(base, options) else command.KIND
    if options.resume is not None:
        plans = command.plan_resumed(base, options, kind)
    elif base is None:
        raise InvalidInput("train needs a preset, --data FOLDER with --model PRESET, or --resume RUN; see: rfwp presets")
    else:
        name = preset if options.data is None else f"{options.data.resolve().name}-{options.model}"
        plans = command.plan_runs(kind.change(base, options), options, name, kind)
    results = command.train(plans, options, ConsoleLog(_console()), kind)
    title = f"test, {len(results)} seeds: mean ± standard deviation" if len(results) > 1 else "test"
    _end_training(plans, results, title, command.summary, at_once=options.shard)


def _end_training(
    plans: "list[Plan]",
    results: list[Any],
    title: str,
    summary: Callable[[list[Any]], list[tuple[str, str]]],
    at_once: bool = False,
) -> NoReturn:
    """What the runs have reached and where they are, unless a signal stopped them; the process ends as its last run did."""
    from rfwp.train.command import exit_code

    if is_first() and not exit_code(results):
        _console().print(_listing((title, ""), summary(results)))
        for plan in plans:
            _console().print(f"-> {plan.folder}", style="dim", soft_wrap=True)
    end_process(exit_code(results), at_once)


def _is_agent_run(preset: str, options: RunOptions) -> bool:
    from rfwp.rl.result import is_rl_run

    return preset == "rl" or is_agent(preset) or (not preset and options.resume is not None and is_rl_run(options.resume))


def _train_agent(preset: str, options: RunOptions, agent: RLOptions) -> NoReturn:
    from rfwp.rl import command as agents
    from rfwp.train import command
    from rfwp.train.log import ConsoleLog

    if agent.core and preset != "rl":
        raise InvalidInput(f"--core {agent.core} goes with rl: rfwp train rl --core {agent.core}; {preset or 'a run'} has a core")
    base = None
    if preset:
        row = f"atari/{agent.core or 'rdn'}" if preset == "rl" else preset
        base = agent_run(row, agents.choose_environment(agent))
        # the paper's agents are those that play Atari games
        base = replace(base, preset=f"rl/{row.partition('/')[2]}") if agent.env else base
    kind = agents.kind_of(agent)
    if base is None or options.resume is not None:
        plans = command.plan_resumed(base, options, kind)
    else:
        config = agents.changed(base, options)
        plans = command.plan_runs(config, options, agents.name_of(config), kind)
    results = command.train(plans, options, ConsoleLog(_console()), kind)
    _end_training(plans, results, "the last 100 episodes of training", agents.summary)


def _base(preset: str, options: RunOptions) -> RunConfig | LanguageRunConfig | None:
    """The run before changes: a preset's, or that of a preset's model on files."""
    from rfwp.train.command import files_run

    if bool(options.data) != bool(options.model):
        raise InvalidInput("--data FOLDER and --model PRESET go together: what to learn, and which model learns it")
    if options.data is None:
        if is_language(preset):
            return language_run(preset)
        return run_config(preset) if preset else None
    if preset:
        raise InvalidInput(f"--data trains on your files, and {preset} has a task of its own; give one of them")
    model = model_config(options.model)
    if not isinstance(model, SequenceConfig):
        raise InvalidInput(f"the model of {options.model} does not read tokens; take one of: {', '.join(TASKS)}")
    table = options.model.partition("/")[0]
    return files_run(model, run_config(options.model).train if table in TASKS else TrainConfig(), options.data)


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    options: EvalOptions = EvalOptions(),  # noqa: B008
    agent: AgentEvalOptions = AgentEvalOptions(),  # noqa: B008
) -> None:
    """Evaluate a run's best checkpoint, or show what it says to a sequence of your own; an agent plays.

    Args:
        run: The folder that `rfwp train` made.
    """
    from rfwp.rl.result import is_rl_run

    if is_rl_run(run):
        _evaluate_agent(run, options, agent)
        return
    if agent != AgentEvalOptions():
        raise InvalidInput("--episodes, --runs, --protocol and the like are for agents; leave them away")
    from rfwp.train import command
    from rfwp.train.folder import RunFolder
    from rfwp.train.log import ConsoleLog

    log = ConsoleLog(Console(stderr=True))
    if isinstance(RunFolder(run).config(), LanguageRunConfig):
        _evaluate_text(run, options, log)
        return
    if options.stride is not None:
        raise InvalidInput("--stride is for language models; leave it away")
    if options.input is None:
        metrics = command.evaluate_run(run, options, log)
        _console().print(_listing((options.split, ""), ((name, f"{100 * value:.2f} %") for name, value in metrics.items())))
        return
    said = command.answer(run, options, log)
    rows = [(s.token, s.prediction, "?" if s.truth is None else s.truth, "wrong" if s.wrong else "") for s in said]
    _console().print(_listing(("token", "prediction", "truth", ""), rows))


def _evaluate_agent(run: Path, options: EvalOptions, agent: AgentEvalOptions) -> None:
    """The mean score of each run of the test, and of all of them."""
    from rfwp.rl.trained import evaluate_trained, load_agent, rows, write_evaluation
    from rfwp.train.log import ConsoleLog

    if replace(options, device="auto") != EvalOptions():
        raise InvalidInput("--split, --input and --stride are not for agents; see: rfwp eval --help")
    trained = load_agent(run, options.device, ConsoleLog(Console(stderr=True)))
    found = evaluate_trained(trained, agent)
    _console().print(_listing(("test", ""), rows(trained, found)))
    _console().print(f"-> {write_evaluation(trained, found)}", style="dim", soft_wrap=True)


def _evaluate_text(run: Path, options: EvalOptions, log: "ConsoleLog") -> None:
    """Perplexity, and the plot of the loss at each position of a segment."""
    from rfwp.lm.command import evaluate_run
    from rfwp.report.plots import plot_positions

    found = evaluate_run(run, options, log)
    _console().print(_listing((found.split, ""), found.rows()))
    try:
        title = f"{run.name}: {found.split}"
        files = plot_positions(found.by_position, run / f"loss-by-position-{found.split}", title)
    except MissingExtra as error:
        # the numbers are there, and eval-SPLIT.json has what the plot would show
        print(f"rfwp: {error}", file=sys.stderr)
        files = []
    for path in (run / f"eval-{found.split}.json", *files):
        _console().print(f"-> {path}", style="dim", soft_wrap=True)


@app.command
def watch(run: Annotated[Path, tyro.conf.Positional], options: WatchOptions = WatchOptions()) -> None:  # noqa: B008
    """Record an agent's game as a video, with the probabilities of its actions and the value that it expects.

    Args:
        run: The folder that `rfwp train` made.
    """
    from rfwp.report.video import check_out, write_picture, write_video
    from rfwp.rl.trained import load_agent, watched
    from rfwp.train.log import ConsoleLog

    if not options.seconds > 0:
        raise InvalidInput(f"seconds={options.seconds}; use a positive number")
    out = options.out or run / ("episode.gif" if options.frame is None else "frame.png")
    check_out(out, picture=options.frame is not None)
    game = watched(load_agent(run, options.device, ConsoleLog(Console(stderr=True))), options)
    if options.frame is None:
        steps = write_video(game.moments(options.seconds), out, game.actions, game.steps_per_s)
    else:
        write_picture(game, out, game.actions, steps := options.frame)
    _console().print(f"score {game.score:g} after {steps} steps -> {out}", soft_wrap=True, highlight=False)


@app.command
def generate(model: Annotated[str, tyro.conf.Positional], options: GenerateOptions = GenerateOptions()) -> None:  # noqa: B008
    """Go on with a text, word by word, in constant time and memory a word.

    Args:
        model: A language model: the folder of its run, or of the saved model.
    """
    from rfwp.lm.generate import check_options, prompt_words, tell, tell_many, unknown_words, write_lines
    from rfwp.lm.saved import load_language_model
    from rfwp.train.speed import find_device

    check_options(options)
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    network, words = load_language_model(model, find_device(options.device))
    if note := unknown_words(prompt_words(prompt), words):
        print(f"rfwp: {note}", file=sys.stderr)
    console = _console()
    if options.out is not None:
        write_lines(tell_many(network, words, prompt, options), options.out)
        console.print(f"-> {options.out}", style="dim", soft_wrap=True)
    elif options.streams > 1:
        for line in tell_many(network, words, prompt, options):
            console.out(line, highlight=False)
    else:
        for piece in tell(network, words, prompt, options):
            console.out(piece, end="", highlight=False)
        console.out("")


@app.command
def export(model: Annotated[str, tyro.conf.Positional], folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Write a language model and its words for Hugging Face's transformers: AutoModelForCausalLM and AutoTokenizer.

    In Python, `import rfwp.hf` makes the Auto classes know the model.

    Args:
        model: A language model: the folder of its run, or of the saved model.
        folder: A new folder.
    """
    from rfwp.hf.export import export as write

    write(model, folder)
    _console().print(f"-> {folder}", style="dim", soft_wrap=True)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"standard input is not UTF-8 (byte {error.start}); convert it to UTF-8") from None


@app.command
def reproduce(options: Annotated[ReproduceOptions, tyro.conf.PositionalRequiredArgs]) -> None:
    """Train what is missing of a table of the paper; the same command continues what it left unfinished.

    Exit code 1: a run failed. 130 or 143: stopped by Ctrl-C or SIGTERM, and saved.
    """
    from rfwp.reproduce.run import describe_outcome, describe_plan, make_plan
    from rfwp.reproduce.run import reproduce as run_plan

    def say(line: str) -> None:
        _console().print(line, soft_wrap=True, markup=False, highlight=False)

    plan = make_plan(options)
    for line in describe_plan(plan, options.jobs):
        say(line)
    if options.dry_run or not plan.missing:
        return
    outcome, code = run_plan(plan, options, say)
    for line in describe_outcome(outcome):
        say(line)
    sys.exit(code)


@app.command
def report(out: Path = Path("results")) -> None:
    """Write the paper's tables with our runs beside them, learning curves and speed, as one page; show the tables that have runs.

    Args:
        out: Folder with runs/*.jsonl and bench/*.jsonl; gets report.html, report.md, tables/*.md and figures/*.png and *.svg.
    """
    from rfwp.report.atari import write_atari
    from rfwp.report.page import write_page
    from rfwp.report.results import read_results
    from rfwp.report.tables import LEGEND, write_tables
    from rfwp.report.wiki import write_text_tables

    results = read_results(out)
    for problem in results.problems:
        print(f"rfwp: {problem}; it was passed over", file=sys.stderr)
    if not results.runs and not results.measurements:
        raise InvalidInput(f"{out / 'runs'} has no finished runs; make some: rfwp reproduce table-2")
    console, runs = _console(), results.runs
    agents = write_atari(runs, out / "tables")
    for table in (*write_tables(runs, out / "tables"), *write_text_tables(runs, out / "tables"), agents):
        if table.runs:
            console.print(f"\n{table.title}", style="bold")
            # headings take several short lines, so that many columns find room
            console.print(_listing([title.replace(", ", "\n") for title in table.header], table.rows))
        for note in table.notes:
            console.print(note, style="dim", soft_wrap=True, markup=False, highlight=False)
    console.print(f"\n{LEGEND}", style="dim", soft_wrap=True)
    pictures = _draw(runs, out / "figures", with_agents=agents.runs > 0)
    for path in (out / "tables", *pictures, *write_page(results, out, pictures)):
        console.print(f"-> {path}", style="dim", soft_wrap=True)


def _draw(runs: "Sequence[Run]", folder: Path, with_agents: bool) -> list[Path]:
    """PNG and SVG files, for papers and slides; without matplotlib there are none, and that is said."""
    from rfwp.report.plots import write_figures, write_improvements, write_returns

    writers = (write_figures, write_improvements, write_returns) if with_agents else (write_figures,)
    try:
        return [path for write in writers for path in write(runs, folder)]
    except MissingExtra as error:
        # the page draws by itself
        print(f"rfwp: {error}", file=sys.stderr)
        return []


@app.command
def play(
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    port: int | None = None,
    semantics: Literal["authors", "true"] | None = None,
    browse: bool = False,
) -> None:
    """Watch a model write and read its fast weights, token by token, on a page of this machine; Ctrl-C ends it.

    Args:
        models: Folders of runs or of saved models, to compare side by side; the packaged model if left away.
        port: Where to serve the page; the usual port, or a free one, if left away.
        semantics: Of code execution, for the right answers; as the run says, or the authors', if left away.
        browse: Open the page in the browser.
    """
    try:
        from rfwp.play.server import open_socket, serve
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise missing_extra("play", "play") from None
    import torch

    from rfwp.play.shown import load_all

    # one step of a small model gains nothing from a second thread
    torch.set_num_threads(1)
    place = open_socket(port)
    shown = load_all(models, semantics)
    address = f"http://127.0.0.1:{place.getsockname()[1]}"
    print(f"{', '.join(shown)}: open {address} (Ctrl-C ends it)", flush=True)
    if browse:
        import webbrowser

        webbrowser.open(address)
    serve(shown, place)


def _listing(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    listing = Table(box=None, header_style="bold", pad_edge=False)
    for title in header:
        listing.add_column(title, no_wrap=True)
    for row in rows:
        # symbols of a task may look like markup
        listing.add_row(*(Text(cell) for cell in row), style="red" if row[-1] == "wrong" else None)
    return listing


def systematic_name(config: ModelConfig) -> str:
    """`Recurrent/Delta fast Linear Net` for fast weight programmers, a plain word for the baselines."""
    match config.core:
        case BlocksConfig(layer=FWPConfig() as layer):
            return Composition(layer.slow, layer.rule, layer.fast, layer.phi).name  # type: ignore[arg-type]
        case BlocksConfig():
            return "Softmax attention"
        case LSTMConfig(hidden=hidden):
            return f"LSTM, {hidden} units"
        case HighwayConfig():
            return "Feedforward, gated"
    return "Feedforward"


def count(config: ModelConfig) -> int:
    """Trained parameters, counted without allocating them."""
    return sum(p.numel() for p in rfwp.build(config, device="meta").parameters())


def variants(preset: Preset) -> str:
    return " ".join(f":{name}" for name in preset.variants)


def _check_command(arguments: list[str]) -> None:
    """A mistyped command gets a suggestion, not a page of usage; a list that is given twice is an error."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown("command", arguments[0], COMMANDS)
    # the last one would count, and the others would be lost in silence
    for flag in ("--set", "--seeds", "--models", "--games"):
        if arguments.count(flag) > 1:
            raise InvalidInput(f"{flag} is there twice; put all values behind one {flag}")


def _example(chosen: list[Preset]) -> str:
    return next((f":{name}" for name in chosen[0].variants), "")


def _console() -> Console:
    # without a terminal, lines are as long as they need to be
    return Console(width=None if sys.stdout.isatty() else 160)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    logging.basicConfig(
        format="%(message)s", handlers=[RichHandler(console=Console(stderr=True), show_path=False, show_time=False)]
    )
    logging.getLogger("rfwp").setLevel(logging.INFO)  # which backend runs is said, once
    try:
        _check_command(sys.argv[1:] if arguments is None else arguments)
        app.cli(prog="rfwp", description=DESCRIPTION, args=arguments, config=(tyro.conf.OmitArgPrefixes,))
    except RFWPError as error:
        # of several processes with one mistake, one says it
        if is_first():
            print(f"rfwp: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        # without a name it is none of the user's files
        if error.filename is None:
            raise
        print(f"rfwp: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("rfwp: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
