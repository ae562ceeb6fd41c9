"""Tiny language models with words, saved as models or as runs."""

from rfwp.config import to_dict
from rfwp.tasks.reading import EOS
from rfwp.tasks.words import UNK, Words
from rfwp.train.checkpoint import BEST, EARLIER_BEST, Checkpoint, save
from rfwp.version import __version__
from tests.models.language_models import VOCABULARY, language_model

WORDS = Words([EOS, UNK, ",", *(f"word{n}" for n in range(VOCABULARY - 3))])


def saved_model(folder, **options):
    model = language_model(**options).float().eval()
    model.save_pretrained(folder)
    WORDS.save(folder / "words.txt")
    return model


def saved_run(folder, **options):
    """As training leaves it: checkpoints, and the words beside them."""
    model = language_model(**options).float().eval()
    folder.mkdir()
    config = {"rfwp": __version__, "model": to_dict(model.config)}
    save(Checkpoint(model.state_dict(), {}, config, {}, {"words.txt": WORDS.content()}), folder, BEST, EARLIER_BEST)
    WORDS.save(folder / "words.txt")
    return model
