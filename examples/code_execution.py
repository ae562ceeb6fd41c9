"""Code execution: a small Delta RNN and a small Linear Transformer learn to execute short programs.

A model reads a program token by token and says at the end of each print statement what it prints, and `_` everywhere else:

    x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;
    _ _ _ _ _ _ _ _ _ _  _ _  _ _ _ _ _     _ _ _     _ 4

Both models are trained on the CPU for the same number of steps, at the same time, each in a process of its own. Ctrl-C is safe:
the same command goes on, and after the end it shows everything again. Programs mean what they seem to mean (semantics="true");
the data sets of the paper read conditional assignments in another way, see rfwp/tasks/code_execution.py.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import rfwp
from rfwp.config import BlocksConfig, CodeExecutionConfig, FWPConfig, RunConfig, SequenceConfig, TrainConfig
from rfwp.errors import RFWPError
from rfwp.report.plots import plot_curves
from rfwp.report.records import append_line, read_file
from rfwp.tasks import Task, load_task
from rfwp.train import Log, Moment, Result, Trainer

LAYERS = {"delta-rnn": FWPConfig(fast="rnn"), "linear-transformer": FWPConfig(rule="sum", phi="elu")}
TITLES = {"delta-rnn": "Delta RNN", "linear-transformer": "Linear Transformer"}
INTRODUCTION = """\
A Delta RNN and a Linear Transformer learn to execute programs of {statements} statements, side by side on the CPU, in minutes.
Then both execute a program that is new to them, and a report with their learning curves is written. Ctrl-C is safe.
"""


def make_run(name: str, task: Task, options: argparse.Namespace) -> RunConfig:
    """Everything that decides the result of a run."""
    core = BlocksConfig(LAYERS[name], width=32, layers=2, heads=4, ff=64, final_norm=True)
    model = SequenceConfig(inputs=len(task.source), outputs=len(task.target), core=core, embedding=32)
    train = TrainConfig(epochs=options.epochs, batch=16, lr=3e-3, decay=0.5, precision="fp32", seed=options.seed)
    return RunConfig(model, task.config, train, preset=f"demo/{name}")


# --- Training: this process starts one for each model, and shows what they say ---


class PipeLog(Log):
    """One line of JSON for whatever there is to say."""

    live = True

    def say(self, line: str) -> None:
        self._send(say=line)

    warn = say

    def moment(self, moment: Moment) -> None:
        self._send(moment=asdict(moment))

    def epoch(self, record: dict[str, Any], moment: Moment) -> None:
        self._send(moment=asdict(moment), record=record)

    def _send(self, **message: Any) -> None:
        try:
            print(json.dumps(message), flush=True)
        except BrokenPipeError:
            # whoever started this process is gone: save, and end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            signal.raise_signal(signal.SIGTERM)


def train_one(name: str, task: Task, options: argparse.Namespace) -> None:
    """The part of a process: a run that is there already goes on."""
    result = Trainer(make_run(name, task, options), options.out / name, device="cpu", task=task, log=PipeLog()).run()
    if result.stopped in ("SIGINT", "SIGTERM"):
        sys.exit(130)


def train(task: Task, options: argparse.Namespace, console: Console) -> dict[str, Result]:
    """Both models at once, each in a folder of its own; a finished run only gives its result."""
    folders = {
        name: Trainer(make_run(name, task, options), options.out / name, device="cpu", task=task).folder for name in TITLES
    }
    before = {name for name, folder in folders.items() if folder.finished}
    with bars(console) as progress, processes([name for name in TITLES if name not in before], options) as started:
        rows = {name: progress.add_task(TITLES[name], total=1.0, score="") for name in started}
        for name, message in messages(started):
            if "say" in message:
                console.print(f"{TITLES[name]}: {message['say']}", markup=False, highlight=False)
                continue
            moment = Moment(**message["moment"])
            score = "" if moment.score is None else f"{100 * moment.score:.1f} %"
            done = (moment.epoch - 1 + moment.step / moment.steps) / moment.epochs
            progress.update(rows[name], completed=done, score=score)
            if "record" in message and not console.is_terminal:
                console.print(f"{TITLES[name]}: epoch {moment.epoch}/{moment.epochs}, {score} of the validation programs")
    results = {name: folder.result() for name, folder in folders.items()}
    for name, result in results.items():
        how = "trained before" if name in before else f"trained in {result.seconds:.0f} s"
        score = percent(result, "sequence accuracy")
        console.print(f"{TITLES[name]}: {how}; {score} of the test programs without a mistake", highlight=False)
    return results


def bars(console: Console) -> Progress:
    score = TextColumn("{task.fields[score]:>7} of programs right")
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        score,
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def processes(names: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One for each model. Ctrl-C in the terminal is for this process alone; it passes it on, and they save what they have."""
    command = [sys.executable, __file__, *(f"--{key}={value}" for key, value in vars(options).items() if key != "only")]
    started = {
        name: subprocess.Popen([*command, "--only", name], stdout=subprocess.PIPE, text=True, start_new_session=True)
        for name in names
    }
    try:
        yield started
    except BaseException:
        for process in started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        raise
    finally:
        for process in started.values():
            process.wait()
    if any(process.returncode == 130 for process in started.values()):
        raise KeyboardInterrupt
    if any(process.returncode for process in started.values()):
        raise RFWPError("a training process failed; what it said stands above")


def messages(started: dict[str, subprocess.Popen[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the processes say, as it comes, until all of them have ended."""
    lines: queue.Queue[tuple[str, str]] = queue.Queue()

    def listen(name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for text in process.stdout:
                lines.put((name, text))
        lines.put((name, ""))

    for name, process in started.items():
        threading.Thread(target=listen, args=(name, process), daemon=True).start()
    open_ones = len(started)
    while open_ones:
        name, text = lines.get()
        if text:
            yield name, json.loads(text)
        else:
            open_ones -= 1


# --- What they have learned ---


@torch.no_grad()
def execute(model: rfwp.SequenceModel, tokens: torch.Tensor, task: Task) -> list[str]:
    """What a model says at each token (T,) of a program. It sees one token a step; what it remembers is its state."""
    said, state = [], None
    for token in tokens.long():
        logits, state = model.step(token.unsqueeze(0), state)
        said.append(int(logits.argmax()))
    return task.target.decode(said)


def execute_first_test_program(task: Task, folder: Path) -> list[tuple[str, ...]]:
    """(token, right answer, what each model says) of every step."""
    test = task.split("test")
    T = int(test.lengths[0])
    tokens, targets = test.tokens[0, :T], test.targets[0, :T]
    said = [execute(rfwp.SequenceModel.from_pretrained(folder / name / "best").eval(), tokens, task) for name in TITLES]
    return list(zip(task.source.decode(tokens), task.target.decode(targets), *said, strict=True))


def show(steps: list[tuple[str, ...]], console: Console) -> None:
    """One line a token; wrong answers are marked."""
    console.rule("A new program, token by token", align="left")
    console.print(line(("statement", "token", "right", *TITLES.values())), style="bold")
    statements = [f"{text} ;" for text in " ".join(token for token, *_ in steps).split(" ;")]
    begins = True
    for token, right, *said in steps:
        cells = (statements.pop(0).strip() if begins else "", token, right, *(marked(answer, right) for answer in said))
        begins = token == ";"
        style = "red" if any(answer != right for answer in said) else "green" if right != "_" else "dim"
        console.print(line(cells), style=style, markup=False, highlight=False)
        # slow enough to follow
        if console.is_terminal:
            time.sleep(0.05)


def line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, (24, 8, 8, 13, 20), strict=True)).rstrip()


def marked(answer: str, right: str) -> str:
    return answer if answer == right else f"{answer} wrong"


def percent(result: Result, metric: str) -> str:
    return f"{100 * result.metrics[metric]:.1f} %"


def write_report(results: dict[str, Result], steps: list[tuple[str, ...]], folder: Path) -> Path:
    """A Markdown page with the scores, the learning curves and the program; beside it one JSON line a run."""
    folder.mkdir(parents=True, exist_ok=True)
    records = folder / "runs.jsonl"
    records.unlink(missing_ok=True)
    for result in results.values():
        append_line(records, result.to_json())
    runs = dict(zip(results, read_file(records), strict=True))
    plot_curves({name: [run] for name, run in runs.items()}, folder / "learning-curves", "Code execution, shortened")
    rows = [
        (TITLES[name], f"{r.parameters:,}", *(percent(r, m) for m in ("sequence accuracy", "print accuracy")), f"{r.seconds:.0f}")
        for name, r in results.items()
    ]
    scores = table(("model", "parameters", "programs without a mistake", "right prints", "seconds of training"), rows)
    program = table(("token", "right", *TITLES.values()), [(f"`{t}`", r, *(marked(a, r) for a in said)) for t, r, *said in steps])
    where = next(iter(results.values()))
    parts = [
        "# Code execution, shortened",
        f"Scores on new programs; {where.device}, torch {where.torch}, rfwp {where.rfwp}.",
        scores,
        "![learning curves](learning-curves.png)",
        "## A new program, token by token",
        program,
    ]
    page = folder / "report.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))


def show_next(results: dict[str, Result], page: Path, options: argparse.Namespace, console: Console) -> None:
    """The scores in one sentence, where everything lies, and what to try."""
    scores = ", ".join(f"the {TITLES[name]} {percent(result, 'sequence accuracy')}" for name, result in results.items())
    command = "rfwp" if shutil.which("rfwp") else os.path.relpath(Path(sys.executable).with_name("rfwp"))
    model = options.out / "delta-rnn"
    text = f"""
Of {options.test:,} new programs without a mistake: {scores}.

report           {page}
learning curves  {page.with_name("learning-curves.png")}
trained model    {model / "best"}

Try next:
  {command} eval {model} --input "x = 3 ; x ++ ; if x > 3 : y = 7 ; print y ;"
  {command} presets                              every model of the paper
  {command} train code-execution-3/delta-rnn     the paper's run, programs of 100 statements; takes a GPU"""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the two runs and the report")
    parser.add_argument("--variables", type=int, default=2, help="variables of a program")
    parser.add_argument("--statements", type=int, default=5, help="statements of a program")
    parser.add_argument("--train", type=int, default=60_000, help="training programs")
    parser.add_argument("--test", type=int, default=500, help="validation programs, and as many test programs")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1, help="of the first weights and the order of the programs")
    parser.add_argument("--only", choices=TITLES, help="train this model alone, and say how it goes as lines of JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options, console = parse(arguments), Console(soft_wrap=True)
    # layers this small gain nothing from a second thread
    torch.set_num_threads(1)
    sizes = {"train": options.train, "valid": options.test, "test": options.test}
    config = CodeExecutionConfig(options.variables, options.statements, semantics="true", **sizes)
    try:
        task = load_task(config)
        if options.only:
            train_one(options.only, task, options)
            return
        console.print(INTRODUCTION.format(statements=options.statements), highlight=False)
        results = train(task, options, console)
        steps = execute_first_test_program(task, options.out)
        show(steps, console)
        show_next(results, write_report(results, steps, options.out / "report"), options, console)
    except RFWPError as error:
        print(f"code_execution: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    # like Ctrl-C: the processes that train are told, and save what they have
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
