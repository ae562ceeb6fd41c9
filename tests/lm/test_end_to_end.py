"""From text files to a model inside transformers: every step works on what the one before has left."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rfwp
import rfwp.hf
from rfwp.lm.generate import prompt_words
from rfwp.lm.saved import load_language_model
from tests.lm.tiny import tiny_config, trainer
from tests.test_cli import run


def test_a_trained_run_generates_is_saved_exported_and_loaded_everywhere(tmp_path, text, capsys):
    folder = tmp_path / "run"
    assert trainer(folder, tiny_config(text, **{"train.steps": 60})).run().stopped is None
    model, words = load_language_model(folder)

    code, out, err = run(capsys, "generate", str(folder), "--prompt", "w0 nothing w1", "--tokens", "8", "--temperature", "0")
    assert code == 0
    assert out.startswith("w0 <unk> w1")
    assert "read as <unk>: nothing" in err

    # the checkpoint, a model saved from it and the exported one are the same model
    saved = tmp_path / "saved"
    rfwp.load(folder / "best").save_pretrained(saved)
    words.save(saved / "words.txt")
    assert run(capsys, "export", str(saved), str(tmp_path / "exported"))[0] == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    batch = tokenizer("w0 nothing w1", return_tensors="pt")
    for other in (rfwp.load(saved), rfwp.load(folder / "best")):
        assert torch.equal(other(batch["input_ids"])[0], exported(**batch).logits)
    said = exported.generate(**batch, max_new_tokens=8, do_sample=False)
    assert torch.equal(said[:, 3:], model.generate(batch["input_ids"], 8, temperature=0))
    assert tokenizer.decode(said[0]).split() == prompt_words(out)

    # and it learns on from there
    texts = tokenizer(text.joinpath("train.txt").read_text().splitlines()[:8], return_tensors="pt", padding=True)
    labels = texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)
    exported.train()
    optimiser = torch.optim.Adam(exported.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        losses.append(exported(**texts, labels=labels).loss)
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]
