"""What the options of `rfwp train` make of the config of a run on sequences."""

from pathlib import Path

from rfwp.config import FilesConfig, RunConfig, SequenceConfig, TrainConfig, parse_changes, replace
from rfwp.errors import InvalidInput
from rfwp.tasks import load_task
from rfwp.train.loop import Trainer
from rfwp.train.optim import check_training
from rfwp.train.options import TrainOptions
from rfwp.train.places import places_of_sequences
from rfwp.train.plan import Kind


def changed(base: RunConfig, options: TrainOptions) -> RunConfig:
    """With --epochs and --set. Where the task changes, the model gets the sizes of its vocabularies."""
    if options.steps is not None or options.text or options.held_out or options.vocabulary is not None:
        raise InvalidInput("--steps, --text, --held-out and --vocabulary are for language models, such as lm/rdn")
    changes = parse_changes(options.set)
    if options.epochs is not None:
        changes["train.epochs"] = options.epochs
    config: RunConfig = replace(base, changes)
    check_training(config.train)
    if config.task != base.task:
        config = fit_vocabularies(config, keep=set(changes))
    return config


def places(config: RunConfig, options: TrainOptions) -> dict[str, str]:
    return places_of_sequences(config, options.data)


KIND = Kind(changed, Trainer, places=places)


def fit_vocabularies(config: RunConfig, keep: set[str] | frozenset[str] = frozenset()) -> RunConfig:
    """The model's inputs and outputs are the task's symbols, unless they were given."""
    task = load_task(config.task)
    sizes = {"model.inputs": len(task.source), "model.outputs": len(task.target)}
    fitted: RunConfig = replace(config, {name: size for name, size in sizes.items() if name not in keep})
    return fitted


def files_run(model: SequenceConfig, train: TrainConfig, folder: Path) -> RunConfig:
    """A preset's model on a user's own sequences."""
    # the clusters of an adaptive softmax belong to the vocabulary that they were made for
    plain: SequenceConfig = replace(model, {"cutoffs": ()})
    return fit_vocabularies(RunConfig(plain, FilesConfig(str(folder.expanduser().resolve())), train))
