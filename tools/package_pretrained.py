"""Put the best checkpoint of a finished run into the package, with a card made from the run's own files.

python tools/package_pretrained.py runs/my-run code-execution-5       # -> rfwp/pretrained/code-execution-5
"""

import argparse
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import rfwp
from rfwp.atomic import sync
from rfwp.commands.presets import systematic_name
from rfwp.config import CodeExecutionConfig, ListOpsConfig, RunConfig
from rfwp.errors import InvalidInput, RFWPError
from rfwp.models.packaged import PRETRAINED
from rfwp.presets import find
from rfwp.train.checkpoint import BEST
from rfwp.train.folder import RESULT, RunFolder
from rfwp.train.result import Result

MOST_BYTES = 6_000_000
"""Of a whole folder: everybody who installs rfwp downloads it."""
CARD = "README.md"
TEMPLATE = """---
library_name: rfwp
license: mit
tags: [fast-weight-programmers]
---

# {name}

{title} ({composition}) with {parameters:,} parameters, trained on {about.name}.

```python
import rfwp
{about.example}

model = rfwp.load("{name}")
logits, state = model(program.unsqueeze(0))
task.target.decode(logits[0].argmax(-1))                    # what it says at each token
```

`rfwp play {name}` shows on a local web page what it writes into its fast weights and what it reads from them.

## What it was trained on

{about.data}

The data: {splits}.

## Scores

Of the checkpoint that is the best on the validation set:

{scores}

{about.scores}

## Where it comes from

| | |
|---|---|
{facts}

A model of the paper [Going Beyond Linear Transformers with Recurrent Fast Weight Programmers](https://arxiv.org/abs/2106.06295),
trained with rfwp, not by the paper's authors. Licence: MIT, that of rfwp.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("name", help="what rfwp.load will know it by")
    options = parser.parse_args()
    try:
        print(f"-> {package(options.run, options.name)}")
    except RFWPError as error:
        sys.exit(f"package_pretrained: {error}")


def package(run: Path, name: str, into: Path = PRETRAINED) -> Path:
    """Written beside and then moved into place: the folder is there whole or as it was."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise InvalidInput(f"name '{name}' does not fit; use small letters, digits and -")
    folder = RunFolder(run)
    if not folder.finished or not folder.result().metrics:
        raise InvalidInput(f"{run} is not finished: it has no test score yet")
    new, old = into / f".{name}-new", into / f".{name}-old"
    try:
        rfwp.load(run / BEST).float().save_pretrained(new)
        shutil.copyfile(run / RESULT, new / RESULT)
        (new / CARD).write_text(card(name, folder.result()), encoding="utf-8")
        for file in new.iterdir():
            # as git keeps them, readable for all
            file.chmod(0o644)
            sync(file)
        size = sum(file.stat().st_size for file in new.iterdir())
        if size > MOST_BYTES:
            raise InvalidInput(f"{name} has {size:,} bytes; the package takes at most {MOST_BYTES:,}: train a smaller model")
        shutil.rmtree(old, ignore_errors=True)
        if (into / name).exists():
            (into / name).rename(old)
        new.rename(into / name)
        sync(into)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return into / name


# --- The card ---


@dataclass(frozen=True)
class About:
    """What a card says of a task."""

    name: str
    data: str
    scores: str
    example: str


def card(name: str, result: Result) -> str:
    """Everything in it comes from the run's result."""
    config = result.config
    if not isinstance(config, RunConfig) or not isinstance(config.task, CodeExecutionConfig | ListOpsConfig):
        raise InvalidInput("only models of code execution and ListOps have a card here")
    about = _code_execution(config.task) if isinstance(config.task, CodeExecutionConfig) else _listops(config.task)
    return TEMPLATE.format(
        name=name,
        title=find(config.preset.partition(":")[0]).title,
        composition=systematic_name(config.model),
        parameters=result.parameters,
        about=about,
        splits=f"{config.task.train:,} to train on, {config.task.valid:,} to choose the checkpoint, {config.task.test:,} to test",
        scores=_scores(result, config.task),
        facts=_facts(result, config),
    )


def _code_execution(task: CodeExecutionConfig) -> About:
    rule = {
        "authors": "under a true condition, an assignment is executed only if its variable has no value yet",
        "true": "under a true condition, every statement is executed",
    }[task.semantics]
    reads = "The model reads a program token by token; at the end of each print it says the value, everywhere else nothing."
    return About(
        f"code execution with {task.variables} variables",
        f"Programs of {task.statements} statements over {task.variables} variables, made at random (data seed {task.data_seed}). "
        f"{reads}\n\nSemantics: `{task.semantics}`: {rule}. A model is only ever right in the semantics that it was trained on.",
        "A program is right if the answer at every one of its tokens is right: that is the sequence accuracy. The print accuracy"
        "\ncounts prints, the no-op accuracy the tokens where nothing is to be said.",
        f"""from rfwp.config import CodeExecutionConfig
from rfwp.tasks import CodeExecution

task = CodeExecution(CodeExecutionConfig(variables={task.variables}, semantics="{task.semantics}"))
program = task.encode("x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;")""",
    )


def _listops(task: ListOpsConfig) -> About:
    reads = "The model reads a list once, from left to right, and says its value at the last bracket."
    return About(
        f"ListOps of depth {task.depth}",
        f"Nested lists of MIN, MAX and FIRST of depth {task.depth}, made at random (data seed {task.data_seed}). {reads}",
        "Each list has one answer, its value.",
        f"""from rfwp.config import ListOpsConfig
from rfwp.tasks import ListOps

task = ListOps(ListOpsConfig(depth={task.depth}))
program = task.encode("[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1 ] ]")""",
    )


def _scores(result: Result, task: CodeExecutionConfig | ListOpsConfig) -> str:
    rows = [f"| | validation ({task.valid:,}) | test ({task.test:,}) |", "|---|---|---|"]
    rows += [f"| {name} | {100 * result.valid[name]:.3f} % | {100 * score:.3f} % |" for name, score in result.metrics.items()]
    return "\n".join(rows)


def _facts(result: Result, config: RunConfig) -> str:
    train = config.train
    changed = ", with changes" if result.dirty else ""
    facts = {
        "preset": f"`{config.preset}`",
        "seed": result.seed,
        "epochs": f"{result.epochs}, of which number {result.best_epoch} was the best",
        "batch, learning rate": f"{train.batch}, {train.lr:g}",
        "precision": train.precision,
        "device": result.device,
        "time": f"{result.seconds / 60:.0f} minutes",
        "finished": result.time[:10],
        "rfwp": f"{result.rfwp}, commit {result.commit or 'unknown'}{changed}",
        "PyTorch": result.torch,
    }
    return "\n".join(f"| {name} | {fact} |" for name, fact in facts.items())


if __name__ == "__main__":
    main()
