"""rfwp's language models inside Hugging Face's transformers; importing this package makes the Auto classes know them.

>>> import rfwp.hf
>>> model = AutoModelForCausalLM.from_pretrained("folder")       # made by: rfwp export RUN folder
>>> tokenizer = AutoTokenizer.from_pretrained("folder")
>>> model.generate(**tokenizer("The game began", return_tensors="pt"), max_new_tokens=50, do_sample=True)
"""

from rfwp.errors import missing_extra

try:
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError:
    raise missing_extra("rfwp.hf", "transformers") from None

from rfwp.hf.cache import RecurrentCache
from rfwp.hf.config import RFWPConfig
from rfwp.hf.model import RFWPForCausalLM
from rfwp.hf.tokenizer import word_tokenizer

AutoConfig.register("rfwp", RFWPConfig, exist_ok=True)
AutoModelForCausalLM.register(RFWPConfig, RFWPForCausalLM, exist_ok=True)

__all__ = ["RFWPConfig", "RFWPForCausalLM", "RecurrentCache", "word_tokenizer"]
