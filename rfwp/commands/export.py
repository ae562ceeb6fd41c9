"""`rfwp export`: a language model for transformers."""

from pathlib import Path
from typing import Annotated

import tyro

from rfwp.commands.console import console, show_written


def export(model: Annotated[str, tyro.conf.Positional], folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Write a language model and its words for Hugging Face's transformers: AutoModelForCausalLM and AutoTokenizer.

    In Python, `import rfwp.hf` makes the Auto classes know the model.

    Args:
        model: A language model: the folder of its run, or of the saved model.
        folder: A new folder.
    """
    from rfwp.hf.export import export as write

    write(model, folder)
    show_written(console(), folder)
