"""The config of a transformers model: rfwp's own model config inside transformers' JSON."""

from typing import Any, ClassVar

from transformers import PretrainedConfig

from rfwp.config import SequenceConfig, from_dict, to_dict
from rfwp.errors import InvalidInput


class RFWPConfig(PretrainedConfig):
    """`sequence` is a `SequenceConfig`, or what `rfwp.config.to_dict` makes of one; further keywords are transformers' own."""

    model_type = "rfwp"
    # a list, because the Trainer adds to it
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, sequence: SequenceConfig | dict[str, Any] | None = None, use_cache: bool = True, **kwargs: Any):
        # transformers makes one without arguments when it saves, to leave out what is the default
        self.sequence = to_dict(sequence) if isinstance(sequence, SequenceConfig) else sequence or {}
        self.use_cache = use_cache
        # the tied adaptive softmax has one matrix for both ends, so there is nothing left to tie
        super().__init__(**{"tie_word_embeddings": False, **kwargs})

    def sequence_config(self) -> SequenceConfig:
        config = from_dict(self.sequence, "RFWPConfig.sequence")
        if not isinstance(config, SequenceConfig):
            raise InvalidInput(f"RFWPConfig.sequence has kind '{self.sequence['kind']}', expected 'sequence'")
        if config.inputs != config.outputs:
            seen = f"reads {config.inputs} and writes {config.outputs} tokens"
            raise InvalidInput(f"RFWPConfig.sequence {seen}; a language model reads what it writes")
        return config

    # names by which transformers asks; from `sequence`, so that they cannot disagree with it

    @property
    def vocab_size(self) -> int:
        return self.sequence.get("outputs", 0)

    @property
    def hidden_size(self) -> int:
        return self.sequence.get("embedding", 0)

    @property
    def num_hidden_layers(self) -> int:
        return self.sequence.get("core", {}).get("layers", 1)
