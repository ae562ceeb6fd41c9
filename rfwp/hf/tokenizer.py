"""A vocabulary of words as a tokenizer that transformers loads without rfwp."""

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace, Sequence
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from rfwp.tasks.reading import EOS
from rfwp.tasks.words import UNK, Words


def word_tokenizer(words: Words) -> PreTrainedTokenizerFast:
    """Words between spaces, `<eos>` for a line break, `<unk>` for all others; short rows of a batch are padded on the left."""
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words.symbols)}, unk_token=UNK))
    # a line break at the very end does not count, as in `rfwp generate`
    tokenizer.normalizer = Sequence([Replace(Regex(r"\n\z"), ""), Replace("\n", f" {EOS} ")])
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNK,
        eos_token=EOS,
        # what stands before the first word is never read, so any token will do
        pad_token=EOS,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # `x<eos>y` is one word that nobody knows, as in `rfwp generate`
        split_special_tokens=True,
    )
