"""From a run to a folder of transformers, and the tokenizer in it."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from rfwp.hf import word_tokenizer
from rfwp.hf.export import as_transformers, export
from rfwp.lm.generate import prompt_words
from tests.lm.saved import WORDS, saved_model, saved_run
from tests.models.language_models import random_tokens
from tests.test_cli import run
from tests.test_readme import python_blocks
from tests.tolerances import FLOAT32

TEXTS = ["word0 word1 , word2", "  word3\tword4 ", "x word0\nword1\n\nword2\n", "word0,word1", "<unk> word5 <eos> word6"]
TEXTS += ["word0<eos>word1", ",<eos>, <unk>word2 <eos>\n<eos>"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_reads_as_we_do(text, tmp_path):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.save_pretrained(tmp_path)
    for reader in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert reader(text)["input_ids"] == WORDS.encode(prompt_words(text))


def test_short_texts_are_padded_on_the_left():
    batch = word_tokenizer(WORDS)(["word0", "word1 word2"], padding=True, return_tensors="pt")
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 1]]
    assert batch["input_ids"].tolist() == [[WORDS.eos, 3], [4, 5]]


def test_ids_become_words_between_spaces():
    tokenizer = word_tokenizer(WORDS)
    assert tokenizer.decode([3, 2, 4, 0, 1]) == "word0 , word1 <eos> <unk>"
    assert len(tokenizer) == len(WORDS)
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (WORDS.eos, WORDS.unk)


@pytest.mark.parametrize("save", [saved_model, saved_run])
def test_an_exported_model_is_the_model_of_the_run(save, tmp_path, capsys):
    model = save(tmp_path / "run", core="delta_rnn")
    code, out, err = run(capsys, "export", str(tmp_path / "run"), str(tmp_path / "new"))
    assert (code, out, err) == (0, f"-> {tmp_path / 'new'}\n", "")
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert torch.equal(loaded(random_tokens(2, 6)).logits, model(random_tokens(2, 6))[0])
    batch = tokenizer("word0 word1", return_tensors="pt")
    said = loaded.generate(**batch, max_new_tokens=5, do_sample=False)
    expected = model.generate(batch["input_ids"], 5, temperature=0)
    assert tokenizer.decode(said[0]) == " ".join(["word0", "word1", *WORDS.decode(expected[0])])


def test_a_pipeline_goes_on_with_a_prompt_that_ends_with_a_space(tmp_path):
    model = saved_model(tmp_path / "model")
    wrapped, tokenizer = as_transformers(model, WORDS)
    tell = pipeline("text-generation", model=wrapped, tokenizer=tokenizer)
    (said,) = tell("word0 word1 ", max_new_tokens=6, do_sample=False, skip_special_tokens=False)
    expected = model.generate(torch.tensor([WORDS.encode(["word0", "word1"])]), 6, temperature=0)
    assert said["generated_text"] == " ".join(["word0", "word1", *WORDS.decode(expected[0])])


def test_eos_ends_a_line_and_not_the_text(tmp_path):
    saved_model(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "new")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    torch.manual_seed(0)
    said = loaded.generate(random_tokens(4, 3), max_new_tokens=60, do_sample=True, temperature=20.0)
    place = (said[:, 3:] == WORDS.eos).int().argmax(1)
    assert (place < 50).any()
    assert said.shape == (4, 63)
    assert all((row[3 + p + 1 :] != WORDS.eos).any() for row, p in zip(said, place.tolist(), strict=True))


def test_the_tokenizer_needs_no_rfwp(tmp_path):
    """In a fresh interpreter where the package cannot be imported."""
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    code = f"""
import sys
sys.modules["rfwp"] = None
from transformers import AutoTokenizer
print(AutoTokenizer.from_pretrained({str(tmp_path)!r})("word0 x word1")["input_ids"])
"""
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=offline)
    assert done.stdout.strip() == "[3, 1, 4]", done.stderr


def test_a_folder_that_is_there_is_not_written_over(tmp_path, capsys):
    saved_model(tmp_path / "model")
    code, _, err = run(capsys, "export", str(tmp_path / "model"), str(tmp_path / "model"))
    assert code == 2
    assert "is there already; give a new folder" in err
    (tmp_path / "file").touch()
    code, _, err = run(capsys, "export", str(tmp_path / "model"), str(tmp_path / "file" / "new"))
    assert code == 2
    assert "cannot write" in err
    assert len(err.strip().splitlines()) == 1


def test_without_transformers_the_extra_is_named():
    code = "import sys; sys.modules['transformers'] = None\nfrom rfwp.cli import main; main(['export', 'a', 'b'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == 'rfwp: rfwp.hf needs: pip install "rfwp[transformers]"\n'


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch):
    program, training = python_blocks("docs/generation.md")
    saved_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    export("run", tmp_path / "my-model")
    names = {}
    exec(compile(program, "docs/generation.md", "exec"), names)
    first, second = names["texts"]
    assert first.startswith("word0 word1 ")
    assert second.startswith("<eos> word2 ")
    assert len(first.split()) == len(second.split()) == 52
    exec(compile(training, "docs/generation.md", "exec"), names)
    # the line break is learned, what stands behind the shorter text is not
    assert names["labels"].tolist() == [[3, 4, WORDS.eos, 5], [6, -100, -100, -100]]
    model, batch = names["model"], names["batch"]
    assert all(p.grad is not None for p in model.parameters())
    alone = batch["input_ids"][:1]
    torch.testing.assert_close(model.eval()(**batch, labels=names["labels"]).loss, model(alone, labels=alone).loss, **FLOAT32)
