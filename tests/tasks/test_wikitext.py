"""Running text in three files, from the config to a batch."""

import pytest
import torch

from rfwp.config import TextConfig, from_dict, to_dict
from rfwp.errors import InvalidFile, InvalidInput, UnknownName
from rfwp.tasks.wikitext import Text
from rfwp.tasks.words import Words

TEXTS = {"wiki.train.tokens": "a b <unk>\na\n", "valid.txt": "b x\n\n", "wiki.test": "a\n"}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "text"
    path.mkdir()
    for name, text in TEXTS.items():
        (path / name).write_text(text)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_three_files_become_tokens_and_batches(folder, cache):
    text = Text(TextConfig(str(folder), segment=2))
    assert text.words.symbols == ("<eos>", "a", "b", "<unk>")
    assert text.tokens("train").tolist() == [1, 2, 3, 0, 1, 0]
    assert text.tokens("valid").tolist() == [2, 3, 0, 0]
    assert text.tokens("test").tolist() == [1, 0]
    batches = text.batches("train", 2)
    assert [targets.tolist() for _, targets in batches] == [[[2, 3], [1, 0]]]
    assert torch.equal(text.batches("train", 2, rank=1, world=2)[0][0], torch.tensor([[0, 1]]))
    assert len(list(cache.iterdir())) == 4


def test_a_vocabulary_file_stands_in_for_the_training_text(folder, tmp_path):
    (folder / "wiki.train.tokens").unlink()
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("<eos>\n<unk>\nx\na\n")
    text = Text(TextConfig(str(folder), str(vocabulary)), tmp_path / "kept", splits=["valid"])
    assert text.tokens("valid").tolist() == [1, 2, 0, 0]
    with pytest.raises(UnknownName, match="unknown split 'test'; known: valid"):
        text.tokens("test")


def test_the_vocabulary_of_a_model_goes_before_that_of_the_config(folder, tmp_path):
    words = Words(["<eos>", "<unk>", "x"])
    text = Text(TextConfig(str(folder), "no such file"), tmp_path / "kept", splits=["valid"], words=words)
    assert text.words is words
    assert text.tokens("valid").tolist() == [1, 2, 0, 0]


def test_all_splits_are_looked_for_before_anything_is_read(folder, tmp_path):
    (folder / "wiki.test").unlink()
    with pytest.raises(InvalidFile, match="has no text for test; looked for"):
        Text(TextConfig(str(folder)), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_slips_in_the_config_are_named(folder, tmp_path):
    with pytest.raises(UnknownName, match=r"unknown text or folder 'wikitext-13'; did you mean 'wikitext-103'\?"):
        Text(TextConfig("wikitext-13"), tmp_path)
    with pytest.raises(InvalidFile, match="nowhere is not a folder"):
        Text(TextConfig(str(tmp_path / "nowhere")), tmp_path)
    with pytest.raises(InvalidInput, match="segment=0 does not fit; use a whole number, at least 1"):
        Text(TextConfig(str(folder), segment=0), tmp_path)
    with pytest.raises(UnknownName, match=r"unknown split 'vaild'; did you mean 'valid'\?"):
        Text(TextConfig(str(folder)), tmp_path, splits=["vaild"])
    with pytest.raises(InvalidFile, match=r"nothing\.txt cannot be read: No such file"):
        Text(TextConfig(str(folder), str(tmp_path / "nothing.txt")), tmp_path)
    with pytest.raises(InvalidInput, match="the text has 6 tokens, too few for 4 streams of 256 steps"):
        Text(TextConfig(str(folder)), tmp_path).batches("train", 4)


def test_the_config_survives_json():
    config = TextConfig("wikitext-2", "vocab.txt", 64)
    assert to_dict(config)["kind"] == "text"
    assert from_dict(to_dict(config)) == config
