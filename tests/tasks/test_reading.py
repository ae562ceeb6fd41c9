"""Running text from files: the same words however they are stored, and one line about everything that is no text."""

import lzma

import pytest

from rfwp.errors import InvalidFile
from rfwp.tasks import reading
from rfwp.tasks.reading import EOS, file_names, find_files, read_pieces, read_words

TEXT = " = Título = \n\n The cat , the CAT \n \n sat\u00a0down\t<unk> . \n"
LINES = [["=", "Título", "="], [], ["The", "cat", ",", "the", "CAT"], [], ["sat", "down", "<unk>", "."]]
WORDS = [word for line in LINES for word in (*line, "<eos>")]


def words(path, content):
    path.write_bytes(content)
    return [word for part in read_words(path) for word in part]


def test_every_line_ends_with_eos_and_case_is_kept(tmp_path):
    assert words(tmp_path / "text", TEXT.encode()) == WORDS


@pytest.mark.parametrize(
    "content",
    [
        TEXT.removesuffix("\n").encode(),
        TEXT.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
    ],
    ids=["no line feed at the end", "line ends of Windows", "byte order mark"],
)
def test_how_a_text_was_saved_does_not_matter(content, tmp_path):
    assert words(tmp_path / "text", content) == WORDS


def test_packed_text_is_the_same_text(tmp_path):
    assert words(tmp_path / "text.xz", lzma.compress(TEXT.encode())) == WORDS


@pytest.mark.parametrize("piece", [16, 17, 33])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_long_texts_and_lines_longer_than_a_piece_lose_no_word(piece, count, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_PIECE", piece)
    monkeypatch.setattr(reading, "_WORDS", count)
    assert words(tmp_path / "text", TEXT.encode()) == WORDS
    assert words(tmp_path / "text", TEXT.removesuffix(" \n").encode()) == WORDS


@pytest.mark.parametrize("space", [" ", "\t"])
def test_a_long_line_may_have_any_spaces(space, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_PIECE", 16)
    assert words(tmp_path / "text", space.join(f"word{n}" for n in range(9)).encode()) == [*(f"word{n}" for n in range(9)), EOS]


def test_words_are_handed_on_in_small_lists(tmp_path):
    path = tmp_path / "text"
    path.write_text("a b c\n" * 100_000)
    parts = list(read_words(path))
    assert sum(map(len, parts)) == 400_000
    assert max(map(len, parts)) < 70_000


def test_lines_are_numbered_from_one(tmp_path):
    path = tmp_path / "text"
    path.write_text("a\n\nb c")
    assert [tuple(piece) for piece in read_pieces(path)] == [(1, "a\n", True), (2, "\n", True), (3, "b c", True)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give a file with at least one word"),
        (b"\xef\xbb\xbf", "is empty"),
        (b" \n\n \n", "is empty"),
        (b"a b\nc \xe9t\xe9\n", r"text: line 2 is not UTF-8 \(byte 0xe9\); convert the file to UTF-8"),
        ("a b\nc\n".encode("utf-16"), r"text: line 1 has a zero byte, so it is no UTF-8 text"),
        (b"PAR1\x15\x00\x15\xff\n", "line 1 has a zero byte"),
        (b"x" * 2**22, "line 1 has a word of more than 1,048,576 bytes, so it is no text"),
    ],
    ids=["nothing", "only a mark", "blank lines", "latin-1", "utf-16", "binary", "one long word"],
)
def test_what_is_no_text_is_named(content, message, tmp_path):
    with pytest.raises(InvalidFile, match=message) as error:
        words(tmp_path / "text", content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"plain text\n", lzma.compress(b"some words " * 1000)[:-20]], ids=["not packed", "truncated"]
)
def test_damaged_packed_text_is_named(content, tmp_path):
    with pytest.raises(InvalidFile, match=r"text\.xz cannot be unpacked: .*; fetch it again"):
        words(tmp_path / "text.xz", content)


def test_unreadable_text_is_named(tmp_path):
    with pytest.raises(InvalidFile, match="nothing cannot be read: No such file"):
        list(read_words(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "name", ["wiki.valid", "wiki.valid.tokens", "wiki.valid.txt", "valid.txt", "wiki.valid.tokens.xz", "valid.txt.xz"]
)
def test_names_of_files(name, tmp_path):
    assert name in file_names("valid")
    (tmp_path / name).touch()
    assert find_files(tmp_path, ["valid"]) == {"valid": tmp_path / name}


def test_missing_and_doubtful_files_are_named(tmp_path):
    with pytest.raises(InvalidFile, match=r"nowhere is not a folder; give one with wiki\.train\.tokens"):
        find_files(tmp_path / "nowhere", ["train"])
    with pytest.raises(InvalidFile, match=r"has no text for test; looked for wiki\.test\.tokens, .*test\.txt\.xz"):
        find_files(tmp_path, ["test"])
    for name in ("wiki.test.tokens", "wiki.test.tokens.xz"):
        (tmp_path / name).touch()
    with pytest.raises(InvalidFile, match=r"several texts for test: wiki\.test\.tokens, wiki\.test\.tokens\.xz; keep one"):
        find_files(tmp_path, ["test"])
