"""What the options of `rfwp train` make of the config of a language model's run."""

from functools import cache
from typing import Any

from rfwp.config import BlocksConfig, LanguageRunConfig, TextConfig, parse_changes, replace
from rfwp.errors import InvalidInput
from rfwp.lm.loop import LanguageTrainer
from rfwp.lm.saved import places_of_text
from rfwp.lm.schedule import check_language_training
from rfwp.tasks.wikitext import Text
from rfwp.train.options import TrainOptions
from rfwp.train.plan import Kind


def changed(base: LanguageRunConfig, options: TrainOptions) -> LanguageRunConfig:
    """With --steps, --text, --vocabulary and --set. For another text the model gets the size of its vocabulary."""
    if options.epochs is not None:
        raise InvalidInput("--epochs is for tasks of sequences; a language model is trained for --steps N")
    if options.data is not None:
        raise InvalidInput("--data is for sequences with targets; a language model reads --text FOLDER")
    changes = parse_changes(options.set)
    given = _flags(base, options)
    if twice := sorted(set(given) & set(changes) - {"train.warmup", "train.validate_every"}):
        raise InvalidInput(f"{twice[0]} is there twice, as a flag and behind --set; give it once")
    config: LanguageRunConfig = replace(base, given | _with_embedding(base, changes))
    check_language_training(config)
    if config.text.segment != base.text.segment and "model.window" not in changes:
        # positions count down to the end of a segment
        config = replace(config, {"model.window": config.text.segment})
    if (config.text.source, config.text.vocabulary) != (base.text.source, base.text.vocabulary):
        config = fit_vocabulary(config, _count_words(config.text), keep=set(changes))
    return config


def places(config: LanguageRunConfig, options: TrainOptions) -> dict[str, str]:
    return places_of_text(options.text, options.held_out, options.vocabulary)


KIND = Kind(changed, LanguageTrainer, places=places)


@cache
def _count_words(text: TextConfig) -> int:
    """Once for all runs of a command."""
    return len(Text(text, splits=()).words)


def _with_embedding(base: LanguageRunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Blocks read embeddings of their own width: who changes the one only means both."""
    width = changes.get("model.core.width")
    if width is None or "model.embedding" in changes or not isinstance(base.model.core, BlocksConfig):
        return changes
    return {**changes, "model.embedding": width}


def _flags(base: LanguageRunConfig, options: TrainOptions) -> dict[str, Any]:
    """What the flags change."""
    found: dict[str, Any] = {**places(base, options)}
    if options.steps is not None:
        train = base.train
        found["train.steps"] = options.steps
        found["train.warmup"] = min(train.warmup, options.steps // 10)
        found["train.validate_every"] = min(train.validate_every, max(1, -(-options.steps // 5)))
    return found


def fit_vocabulary(config: LanguageRunConfig, words: int, keep: set[str] | frozenset[str] = frozenset()) -> LanguageRunConfig:
    """The model's inputs and outputs are the words, and its cutoffs lie among them, unless they were given.

    Where all cutoffs lie beyond, the rarest word alone is a cluster: that is a plain softmax with tied weights.
    """
    cutoffs = tuple(cutoff for cutoff in config.model.cutoffs if cutoff < words) or (words - 1,)
    sizes: dict[str, Any] = {"model.inputs": words, "model.outputs": words}
    if config.model.cutoffs:
        sizes["model.cutoffs"] = cutoffs
    fitted: LanguageRunConfig = replace(config, {name: size for name, size in sizes.items() if name not in keep})
    return fitted
