"""The vocabulary of a language model: its order, its two special words, and what is said about slips in its file."""

import lzma

import pytest

from rfwp.errors import InvalidFile
from rfwp.tasks.words import Words, check_same_vocabulary


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_words_of_a_text_by_frequency_and_then_as_first_seen(tmp_path):
    words = Words.from_text(write(tmp_path / "text", "z b <unk> c\nb z a b\n<unk> z b\n"))
    assert words.symbols == ("<eos>", "b", "z", "<unk>", "c", "a")
    assert (words.eos, words.unk) == (0, 3)


def test_end_of_line_is_first_however_rare_it_is(tmp_path):
    assert Words.from_text(write(tmp_path / "text", "a a b b <unk> <unk>\n")).symbols[0] == "<eos>"
    assert Words.from_text(write(tmp_path / "text", "<eos> a <unk>\n")).symbols == ("<eos>", "a", "<unk>")


def test_missing_unk_is_added_and_said_once(tmp_path, caplog):
    for _ in range(2):
        words = Words.from_text(write(tmp_path / "text", "a b a\n"))
        assert words.symbols == ("<eos>", "<unk>", "a", "b")
    assert caplog.text.count("text has no <unk>; added as word 1") == 1


def test_vocabulary_file_with_counts(tmp_path, caplog):
    content = "the 5584823\n, 4971506\nﬁscal 3"
    expected = ("<eos>", "<unk>", "the", ",", "ﬁscal")
    assert Words.load(write(tmp_path / "vocab.txt", content)).symbols == expected
    assert Words.load(write(tmp_path / "vocab.txt.xz", lzma.compress(content.encode()))).symbols == expected
    assert "added as word 1" in caplog.text


def test_special_words_keep_their_place_in_a_vocabulary_file(tmp_path, caplog):
    words = Words.load(write(tmp_path / "vocab.txt", "the\n<unk>\n<eos>\n"))
    assert words.symbols == ("the", "<unk>", "<eos>")
    assert (words.eos, words.unk) == (2, 1)
    assert not caplog.text


def test_unknown_words_become_unk():
    words = Words(["<eos>", "<unk>", "a"])
    assert words.encode(["a", "b", "<eos>"]) == [2, 1, 0]
    array = words.array(["a", "b", "<eos>"])
    assert (array.tolist(), array.dtype.name) == ([2, 1, 0], "int32")
    assert words.decode([2, 1]) == ["a", "<unk>"]


def test_saved_vocabulary_comes_back(tmp_path):
    words = Words(["<eos>", "the", "<unk>", "@-@", "Zürich"])
    words.save(tmp_path / "model" / "vocab.txt")
    again = Words.load(tmp_path / "model" / "vocab.txt")
    assert again.symbols == words.symbols
    assert again.digest == words.digest
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["vocab.txt"]


def test_digest_knows_words_and_order():
    digests = [
        Words(symbols).digest
        for symbols in (["<eos>", "<unk>", "ab", "c"], ["<eos>", "<unk>", "c", "ab"], ["<eos>", "<unk>", "a", "bc"])
    ]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "vocab.txt is empty; give one word a line"),
        ("a 9\nb 8\n\nc 7\n", "vocab.txt: line 3 is empty; give one word a line"),
        ("a 9\nb 8\na 7\n", "vocab.txt: line 3 has the word 'a' of line 1 again; remove one of them"),
        (b"a\n\xff\n", "vocab.txt: line 2 is not UTF-8"),
        ("a b " * 2**19, "vocab.txt: line 1 is very long; give one word a line"),
    ],
    ids=["empty", "blank line", "twice", "encoding", "a text"],
)
def test_slips_in_a_vocabulary_file_are_named(content, message, tmp_path):
    with pytest.raises(InvalidFile, match=message):
        Words.load(write(tmp_path / "vocab.txt", content))


def test_another_vocabulary_than_the_models_is_refused():
    saved = Words(["<eos>", "<unk>", "the", "of"])
    check_same_vocabulary(saved, Words(saved.symbols))
    with pytest.raises(
        InvalidFile, match=r"\(4 words\) than this text has \(4\): word 2 is 'the' there and 'of' here; use the vocab"
    ):
        check_same_vocabulary(saved, Words(["<eos>", "<unk>", "of", "the"]))
    with pytest.raises(InvalidFile, match=r"\(4 words\) than this text has \(3\): word 3 is 'of' there and nothing here"):
        check_same_vocabulary(saved, Words(saved.symbols[:3]))
