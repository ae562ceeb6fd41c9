"""From a run or a saved model to a folder that transformers loads."""

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from rfwp.errors import InvalidFile, reason
from rfwp.hf.config import RFWPConfig
from rfwp.hf.model import RFWPForCausalLM
from rfwp.hf.tokenizer import word_tokenizer
from rfwp.lm.saved import load_language_model
from rfwp.models import SequenceModel
from rfwp.tasks.words import Words


def as_transformers(model: SequenceModel, words: Words) -> tuple[RFWPForCausalLM, PreTrainedTokenizerFast]:
    """The same model, with the same weights in memory, and its tokenizer."""
    config = RFWPConfig(model.config, bos_token_id=words.eos, eos_token_id=words.eos, pad_token_id=words.eos)
    wrapped = RFWPForCausalLM(config)
    wrapped.model = model
    # no eos_token_id: `<eos>` ends a line, and a text has many
    wrapped.generation_config = GenerationConfig(bos_token_id=words.eos, pad_token_id=words.eos)
    return wrapped.train(model.training), word_tokenizer(words)


def export(path: str | Path, folder: Path) -> None:
    """Write model, config and tokenizer of a run or a saved model into a new folder; it is there whole or not at all."""
    if folder.exists():
        raise InvalidFile(f"{folder} is there already; give a new folder")
    parts = as_transformers(*load_language_model(path))
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.unfinished")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        for part in parts:
            part.save_pretrained(unfinished)
        os.rename(unfinished, folder)
    except (OSError, SafetensorError) as error:
        raise InvalidFile(f"cannot write {folder}: {reason(error)}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
        shutil.rmtree(unfinished, ignore_errors=True)
