"""Associative recall with overwritten keys: what the delta rule can do and the sum rule cannot.

A sequence writes values under keys, again and again under the same ones, and asks for some keys in between:

    a=3  b=7  a=5  a?  b=1  b?        the answers are 5 and 1, the values written last

The Delta Net replaces what a key held; the Linear Transformer can only add to it. Both have one layer and are trained for the
same number of steps on the CPU, in about a minute. (With a second layer, the Linear Transformer learns its way around this.)
"""

import argparse
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import rfwp
from rfwp.config import BlocksConfig, FWPConfig, SequenceConfig

KEYS, VALUES, LENGTH = 4, 8, 32
ASK = VALUES  # a token is key * (VALUES + 1) + value, with this in place of the value when the key is asked for
NO_ANSWER = -1
CONSOLE = Console()


def draw(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, answers (NO_ANSWER where nothing is asked), and how often the asked key had been written: all (B, LENGTH)."""
    rows, (tokens, answers, writes) = torch.arange(batch), (torch.empty(batch, LENGTH, dtype=torch.long) for _ in range(3))
    held = torch.zeros(batch, KEYS, dtype=torch.long)
    times = torch.zeros(batch, KEYS, dtype=torch.long)
    for t in range(LENGTH):
        key = torch.randint(KEYS, (batch,), generator=generator)
        value = torch.randint(VALUES, (batch,), generator=generator)
        ask = (torch.rand(batch, generator=generator) < 0.5) & (times[rows, key] > 0)
        tokens[:, t] = key * (VALUES + 1) + torch.where(ask, ASK, value)
        answers[:, t] = torch.where(ask, held[rows, key], NO_ANSWER)
        writes[:, t] = torch.where(ask, times[rows, key], 0)
        held[rows, key] = torch.where(ask, held[rows, key], value)
        times[rows, key] += ~ask
    return tokens, answers, writes


def make(layer: FWPConfig) -> rfwp.SequenceModel:
    core = BlocksConfig(layer, width=32, layers=1, heads=2, ff=64)
    return rfwp.SequenceModel(SequenceConfig(inputs=KEYS * (VALUES + 1), outputs=VALUES, core=core, embedding=32))


def train(name: str, model: rfwp.SequenceModel, steps: int, progress: Progress) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(1)
    bar = progress.add_task(name, total=steps, loss=float("nan"))
    for step in range(steps):
        tokens, answers, _ = draw(64, generator)
        loss, _ = model.loss(tokens, answers, ignore=NO_ANSWER)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 10 == 0 or step == steps - 1:
            progress.update(bar, completed=step + 1, loss=loss.item())


@torch.no_grad()
def score(model: rfwp.SequenceModel) -> dict[str, float]:
    """Accuracy (%) on fresh sequences: keys written once, keys written over, everything."""
    tokens, answers, writes = draw(500, torch.Generator().manual_seed(2))
    right = model(tokens)[0].argmax(-1) == answers
    groups = {"written once": writes == 1, "written over": writes > 1, "all": writes > 0}
    return {name: 100 * right[group].float().mean().item() for name, group in groups.items()}


def show(model: rfwp.SequenceModel, console: Console, name: str) -> None:
    """One sequence with the model's answers."""
    tokens, answers, _ = draw(1, torch.Generator().manual_seed(3))
    guesses = model(tokens)[0].argmax(-1)
    words = []
    for token, answer, guess in zip(tokens[0].tolist(), answers[0].tolist(), guesses[0].tolist(), strict=True):
        key, value = "abcdefgh"[token // (VALUES + 1)], token % (VALUES + 1)
        colour = "green" if guess == answer else "red"
        words.append(f"{key}={value}" if value != ASK else f"[bold {colour}]{key}?{guess}[/]")
    console.print(f"{name:>18}: {' '.join(words)}", soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    start = time.perf_counter()
    layers = {"Delta Net": FWPConfig(), "Linear Transformer": FWPConfig(rule="sum")}
    models = {}
    title, loss = TextColumn("{task.description:>18}"), TextColumn("loss {task.fields[loss]:.3f}")
    with Progress(title, BarColumn(), loss, TimeRemainingColumn(), console=CONSOLE) as progress:
        for name, layer in layers.items():
            torch.manual_seed(0)
            models[name] = make(layer)
            train(name, models[name], steps, progress)

    table = Table(title=f"Recall accuracy (%) on fresh sequences, chance {100 / VALUES:.1f}", title_justify="left")
    table.add_column("model")
    scores = {name: score(model) for name, model in models.items()}
    for column in scores["Delta Net"]:
        table.add_column(column, justify="right")
    for name, row in scores.items():
        table.add_row(name, *(f"{accuracy:.1f}" for accuracy in row.values()))
    CONSOLE.print(table)
    for name, model in models.items():
        show(model, CONSOLE, name)
    solved = scores["Delta Net"]["written over"] > 99 > scores["Linear Transformer"]["written over"]
    verdict = "The Delta Net solves it, the Linear Transformer does not." if solved else "Not trained long enough."
    CONSOLE.print(f"\n{verdict} ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
