"""A language model of rfwp as a transformers model: `generate`, `save_pretrained`, `pipeline` and a loss to train it with."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from rfwp.errors import InvalidInput, check_shapes
from rfwp.hf.cache import RecurrentCache
from rfwp.hf.config import RFWPConfig
from rfwp.models import SequenceModel
from rfwp.models.adaptive import TiedAdaptive

IGNORE = -100
"""transformers' label for: no target here."""


class RFWPForCausalLM(PreTrainedModel, GenerationMixin):
    """`SequenceModel` under the name `model`; the cache of `generate` is its recurrent state, of constant size.

    Rows of different lengths are padded on the left: the state of a row is reset at its first word, so padding changes nothing.
    Beam search works, since a state can be reordered; assisted generation does not, since a state cannot go back.
    """

    config_class = RFWPConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True

    def __init__(self, config: RFWPConfig):
        super().__init__(config)
        self.model = SequenceModel(config.sequence_config())
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """input_ids (B, T), attention_mask (B, T or more) -> logits (B, T, vocabulary), the loss if there are labels, the cache.

        Labels (B, T) are the input_ids, -100 where nothing is to be learned; the model shifts them. In training mode there
        are then no logits: the loss never holds them all in memory. Without `use_cache` there is a cache if there are no labels.
        """
        if input_ids is None:
            raise InvalidInput("RFWPForCausalLM reads input_ids and nothing else; give input_ids (B, T)")
        if asked := [name for name, value in others.items() if value is not None and value is not False]:
            raise InvalidInput(f"RFWPForCausalLM does not know {', '.join(asked)}; leave it away")
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not self.training
        if not isinstance(past_key_values, RecurrentCache | None):
            seen = type(past_key_values).__name__
            raise InvalidInput(f"RFWPForCausalLM: past_key_values is a {seen}, expected the RecurrentCache of an earlier call")
        past = RecurrentCache(None, 0) if past_key_values is None else past_key_values
        reset = resets(attention_mask, input_ids, use_cache)
        hidden, state = self.model.hidden(input_ids, past.state, reset)
        loss = None if labels is None else self._loss(hidden, labels, num_items_in_batch)
        logits = None
        if loss is None or not self.training:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.model.logits(hidden[:, kept])
        cache = RecurrentCache(state, past.length + input_ids.shape[1]) if use_cache else None
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
        return output.to_tuple() if return_dict is False else output

    def _loss(self, hidden: Tensor, labels: Tensor, total: int | Tensor | None) -> Tensor:
        """The mean over all targets, or their sum / total, where the Trainer adds up several batches."""
        check_shapes("RFWPForCausalLM", {"labels": (labels, "B T"), "hidden": (hidden, "B T D")})
        targets = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)
        mean = self.model.loss_of_hidden(hidden, targets, IGNORE)
        return mean if total is None else mean * (targets != IGNORE).sum() / total

    # --- What transformers asks of a model ---

    def generate(self, inputs: Tensor | None = None, *args: Any, **others: Any) -> Any:
        """As in transformers, but without an attention_mask nothing is padding, and a row of padding is the start of a line.

        transformers would guess a mask from the padding token. That is `<eos>`, which stands in the midst of a text.
        """
        ids = others.get("input_ids") if inputs is None else inputs
        if (mask := others.get("attention_mask")) is not None:
            others["attention_mask"] = begun(mask)
        elif ids is not None:
            others["attention_mask"] = torch.ones_like(ids)
        return super().generate(inputs, *args, **others)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: `generate` begins without a cache and gets ours from the first call."""
        return False

    def _init_weights(self, module: nn.Module) -> None:
        """The model has initialised itself."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.head.embedding if isinstance(self.model.head, TiedAdaptive) else self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        raise InvalidInput("a word-level model has the words it was trained with; train another one for other words")

    def get_output_embeddings(self) -> None:
        """The head is one piece: words, clusters and biases."""

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Module:
        raise InvalidInput("a word-level model has the words it was trained with; train another one for other words")


def begun(attention_mask: Tensor) -> Tensor:
    """The same mask (B, T), but of an empty prompt the last `<eos>` counts: there would be no word to go on from."""
    empty = ~attention_mask.bool().any(-1, keepdim=True)
    last = torch.arange(attention_mask.shape[-1], device=attention_mask.device) == attention_mask.shape[-1] - 1
    return attention_mask.masked_fill(empty & last, 1)


def resets(attention_mask: Tensor | None, input_ids: Tensor, state_goes_on: bool) -> Tensor | None:
    """Where a row begins after padding on its left (B, T); None without a mask.

    A longer mask also covers the tokens before these. Padding on the right is for training only: a state has read it.
    """
    if attention_mask is None:
        return None
    B, T = input_ids.shape
    if attention_mask.dim() != 2 or attention_mask.shape[0] != B or attention_mask.shape[1] < T:
        seen = tuple(attention_mask.shape)
        raise InvalidInput(f"RFWPForCausalLM: attention_mask has shape {seen}, expected (B, T or more) for B={B} and T={T}")
    mask = attention_mask.bool()
    words = mask[:, -T:]
    before = mask[:, -T - 1 : -1] if mask.shape[1] > T else torch.cat((words[:, :1], words[:, :-1]), dim=1)
    begins, ends = words & ~before, ~words & before
    # a compiled graph cannot look at values, and one new token has nothing to look at
    if T > 1 and not torch.compiler.is_compiling() and ends.any():
        if state_goes_on:
            raise InvalidInput(
                "RFWPForCausalLM: attention_mask has padding on the right, which would be remembered; pad on the left"
            )
        if (begins & ends.long().cummax(1).values.bool()).any():
            raise InvalidInput("RFWPForCausalLM: attention_mask has padding inside a row; pad on the left or on the right")
    return begins
