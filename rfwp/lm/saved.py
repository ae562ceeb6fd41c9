"""A language model and its words, from the folder of a run or of a saved model."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from rfwp.config import LanguageRunConfig, SequenceConfig, from_dict
from rfwp.errors import InvalidFile, RFWPError, UnknownName
from rfwp.models import SequenceModel
from rfwp.models.pretrained import WORDS, locate
from rfwp.tasks.hub import WIKITEXT
from rfwp.tasks.types import SPLITS
from rfwp.tasks.wikitext import Text
from rfwp.tasks.words import Words
from rfwp.train.checkpoint import BEST, CONFIG, EARLIER_BEST, STATE, load
from rfwp.train.folder import LOCK
from rfwp.train.model import load_weights

_log = logging.getLogger("rfwp")


def load_language_model(path: str | Path, device: torch.device | str = "cpu") -> tuple[SequenceModel, Words]:
    """A run's best checkpoint, or a saved model, in eval mode, and the vocabulary it was trained with."""
    folder = locate(path)
    # a copy of a run may lack its lock, a run that has just begun its checkpoint
    is_run = any((folder / name).exists() for name in (LOCK, f"{BEST}/{STATE}", f"{EARLIER_BEST}/{STATE}"))
    if is_run:
        model, words = _best_of_run(folder)
    else:
        model, words = SequenceModel.from_pretrained(folder), Words.load(_words_file(folder))
    check_vocabulary(model.config, words, folder)
    return model.to(device).eval(), words


def text_of_run(config: LanguageRunConfig, splits: Sequence[str] = SPLITS, words: Words | None = None) -> Text:
    """The text that a run was trained on; an error says what to do if it has moved since."""
    try:
        return Text(config.text, splits=splits, words=words)
    except (InvalidFile, UnknownName) as error:
        named = "--text, --held-out, --vocabulary" if words is None else "--text, --held-out"
        raise InvalidFile(f"{error} (the text of the run; if it has moved, name its place: {named})") from error


def places_of_text(text: str, held_out: str, vocabulary: Path | None = None) -> dict[str, str]:
    """What `--text`, `--held-out` and `--vocabulary` change in a config."""
    named = {"text.source": text, "text.held_out": held_out}
    found = {name: source if source in WIKITEXT else _absolute(source) for name, source in named.items() if source}
    return found if vocabulary is None else {**found, "text.vocabulary": _absolute(str(vocabulary))}


def _absolute(path: str) -> str:
    """A run may be resumed from another place. What is not there stays as it was typed, for the error that follows."""
    found = Path(path).expanduser()
    return str(found.resolve()) if found.exists() else path


def check_vocabulary(config: SequenceConfig, words: Words, where: object) -> None:
    """The model reads and writes exactly these words."""
    if (config.inputs, config.outputs) != (len(words), len(words)):
        sizes = f"the model in {where} reads {config.inputs:,} and writes {config.outputs:,} words"
        raise InvalidFile(f"{sizes}, but its {WORDS} has {len(words):,}; use the {WORDS} it was trained with")


def _best_of_run(run: Path) -> tuple[SequenceModel, Words]:
    best = load(run, (BEST, EARLIER_BEST), _log.warning)
    if best is None:
        raise InvalidFile(f"{run} has no {BEST} checkpoint yet: it appears after the first validation")
    try:
        config = from_dict(best.config.get("model"), "model")
    except RFWPError as error:
        raise InvalidFile(f"{run / BEST / CONFIG}: {error}") from error
    if not isinstance(config, SequenceConfig):
        raise InvalidFile(f"{run} holds a model that does not read words; give the run of a language model")
    model = SequenceModel(config)
    load_weights(model, best.model, run)
    # those beside the weights have a checksum, those in the run's folder may have been changed
    words = Words.from_content(best.beside[WORDS]) if WORDS in best.beside else Words.load(_words_file(run))
    return model, words


def _words_file(folder: Path) -> Path:
    """Beside the weights, or in the run's folder when one of its checkpoints was given."""
    for place in (folder, folder.resolve().parent):
        if (place / WORDS).is_file():
            return place / WORDS
    raise InvalidFile(f"{folder} has no {WORDS}, so it is no language model; give the folder of a run on text")
