"""Token files: made once, found again, made again when text or vocabulary change, whole or not there."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rfwp.errors import InvalidFile
from rfwp.tasks import tokens as module
from rfwp.tasks.tokens import tokens_of, words_of
from rfwp.tasks.words import Words

WORDS = Words(["<eos>", "<unk>", "a", "b"])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "wiki.train.txt"
    path.write_text("a b c\n\nb\n" * 1_000)
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def refuse(*_):
    raise AssertionError("the text was read again")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_ids_of_a_text_are_a_memory_mapped_file(text, cache):
    tokens = tokens_of(text, WORDS, cache)
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [2, 3, 1, 0, 0, 3, 0] * 1_000
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    (name,) = names(cache)
    assert np.array_equal(np.load(cache / name), tokens)


def test_a_text_is_read_only_once(text, cache, monkeypatch):
    words = words_of(text, cache)
    tokens = tokens_of(text, words, cache)
    monkeypatch.setattr(module, "read_words", refuse)
    monkeypatch.setattr("rfwp.tasks.words.read_words", refuse)
    again = words_of(text, cache)
    assert again.symbols == words.symbols == ("<eos>", "<unk>", "b", "a", "c")
    assert np.array_equal(tokens_of(text, again, cache), tokens)


def test_another_vocabulary_or_a_changed_text_gives_other_tokens(text, cache):
    first = tokens_of(text, WORDS, cache)
    assert tokens_of(text, Words(["<eos>", "b", "a", "<unk>"]), cache)[:4].tolist() == [2, 1, 3, 0]
    text.write_text("b a\n")
    assert tokens_of(text, WORDS, cache).tolist() == [3, 2, 0]
    before = text.stat()
    text.write_text("a b\n")
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert tokens_of(text, WORDS, cache).tolist() == [2, 3, 0]
    assert first[:4].tolist() == [2, 3, 1, 0]


@pytest.mark.parametrize("damage", [lambda c: c[:-4], lambda c: c[:50], lambda c: b"", lambda c: b"x" * len(c)])
def test_damaged_files_are_made_again(damage, text, cache, caplog):
    expected = np.array(tokens_of(text, WORDS, cache))
    (name,) = names(cache)
    content = (cache / name).read_bytes()
    (cache / name).unlink()
    (cache / name).write_bytes(damage(content))
    assert np.array_equal(tokens_of(text, WORDS, cache), expected)
    assert "is damaged" in caplog.text
    assert (cache / name).read_bytes() == content


def test_a_token_file_of_another_type_is_made_again(text, cache, caplog):
    expected = np.array(tokens_of(text, WORDS, cache))
    (name,) = names(cache)
    (cache / name).unlink()
    np.save(cache / name, expected.astype(np.int64))
    assert np.array_equal(tokens_of(text, WORDS, cache), expected)
    assert "is damaged (int64 of shape (7000,))" in caplog.text


def test_a_damaged_vocabulary_is_made_again(text, cache, caplog):
    words = words_of(text, cache)
    (name,) = names(cache)
    (cache / name).write_text("a\na\n")
    assert words_of(text, cache).symbols == words.symbols
    assert "counting the words of" in caplog.text


def test_several_at_once_leave_one_whole_file(text, cache):
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: tokens_of(text, words_of(text, cache), cache), range(4)))
    assert all(np.array_equal(result, results[0]) for result in results)
    tokens, words = names(cache)
    assert tokens.endswith(".npy")
    assert words.endswith(".txt")


def test_a_failure_leaves_nothing_behind(text, cache):
    with text.open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(InvalidFile, match="line 3001 is not UTF-8"):
        tokens_of(text, WORDS, cache)
    assert names(cache) == []


def test_without_a_cache_folder_tokens_stay_in_memory(text, cache, caplog):
    cache.write_text("a file where the folder should be")
    words = words_of(text, cache)
    tokens = tokens_of(text, words, cache)
    assert not isinstance(tokens, np.memmap)
    assert not tokens.flags.writeable
    assert tokens[:4].tolist() == words.encode(["a", "b", "c", "<eos>"])
    assert caplog.text.count("the cache cannot be written") == 2
