"""A user's own files: what they become, and what is said about slips in them."""

import pytest
import torch

from rfwp.config import FilesConfig
from rfwp.errors import InvalidFile, InvalidInput, UnknownName
from rfwp.tasks import load_task

GOOD = {
    "train.src": "b a c\na a\n",
    "train.tgt": "_ _ 1\n_ 2\n",
    "valid.src": "c b\n",
    "valid.tgt": "2 _\n",
    "test.src": "a\n",
    "test.tgt": "1\n",
}


def write(folder, **changes):
    for name, text in {**GOOD, **{name.replace("_", "."): text for name, text in changes.items()}}.items():
        if isinstance(text, bytes):
            (folder / name).write_bytes(text)
        elif text is not None:
            (folder / name).write_text(text, encoding="utf-8", newline="")
    return FilesConfig(str(folder))


def test_files_become_splits(tmp_path):
    task = load_task(write(tmp_path))
    assert task.source.symbols == ("a", "b", "c")
    assert task.target.symbols == ("1", "2", "_")
    train = task.split("train")
    assert train.tokens.tolist() == [[1, 0, 2], [0, 0, 0]]
    assert train.targets.tolist() == [[2, 2, 0], [2, 1, -1]]
    assert train.lengths.tolist() == [3, 2]
    assert task.split("valid").targets.tolist() == [[1, 2]]
    assert task.score == "sequence accuracy"


def test_line_ends_and_byte_order_marks_do_not_matter(tmp_path):
    plain, other = tmp_path / "plain", tmp_path / "other"
    plain.mkdir()
    other.mkdir()
    a = load_task(write(plain))
    b = load_task(write(other, train_src="\ufeffb a  c\r\na\ta", train_tgt="_ _ 1\r\n_ 2"))
    assert a.source.symbols == b.source.symbols
    assert torch.equal(a.split("train").tokens, b.split("train").tokens)


@pytest.mark.parametrize(("symbols", "tokens", "targets"), [(200, torch.uint8, torch.int16), (300, torch.int16, torch.int16)])
def test_large_vocabularies_take_larger_types(symbols, tokens, targets, tmp_path):
    line = " ".join(f"w{number}" for number in range(symbols))
    task = load_task(
        write(tmp_path, **{f"{name}_{side}": line for name in ("train", "valid", "test") for side in ("src", "tgt")})
    )
    split = task.split("test")
    assert (split.tokens.dtype, split.targets.dtype) == (tokens, targets)
    assert task.target.decode(split.targets[0]) == task.source.decode(split.tokens[0]) == line.split()


def test_counts_with_and_without_the_silent_token(tmp_path):
    task = load_task(write(tmp_path))
    targets = torch.tensor([[2, 2, 0], [2, 1, -1]], dtype=torch.int8)
    predictions = torch.tensor([[2, 2, 0], [0, 1, 0]])
    counts = {name: count.tolist() for name, count in task.count(predictions, targets).items()}
    assert counts == {"sequence accuracy": [1, 2], "token accuracy": [4, 5], "spoken accuracy": [2, 2]}
    loud = load_task(FilesConfig(str(tmp_path), silent="quiet"))
    assert loud.count(predictions, targets)["spoken accuracy"].tolist() == [4, 5]


def test_text_of_a_user(tmp_path):
    task = load_task(write(tmp_path))
    assert task.encode("c  a").tolist() == [2, 0]
    assert task.truth("c a") is None
    with pytest.raises(UnknownName, match=r"^character 3: unknown token 'q'; known: a b c$"):
        task.encode("a q")
    with pytest.raises(InvalidInput, match="id 3 is not in the vocabulary; use 0 to 2"):
        task.source.decode([3])
    with pytest.raises(InvalidInput, match="id -1 is not"):
        task.target.decode([-1])
    with pytest.raises(UnknownName, match="unknown token 'q'; known: 1 2 _"):
        task.target.encode(["q"])
    with pytest.raises(UnknownName, match="unknown split 'dev'"):
        task.split("dev")


def test_a_long_vocabulary_is_not_listed_whole(tmp_path):
    line = " ".join(f"w{number}" for number in range(500))
    changes = {f"{name}_{side}": line for name in ("train", "valid", "test") for side in ("src", "tgt")}
    with pytest.raises(UnknownName, match=r"\.\.\. \(500 in all\)$") as error:
        load_task(write(tmp_path, **changes)).encode("q")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valid_tgt": None}, "valid.tgt is missing; the folder needs train.src, train.tgt, valid.src"),
        (
            {"train_tgt": "_ _ 1\n_\n"},
            "train.tgt: line 2 has 1 targets for 2 tokens in train.src; give one target for each token",
        ),
        ({"train_tgt": "_ _ 1\n"}, "train.src has 2 lines but train.tgt has 1; give one line for each"),
        ({"valid_src": "c d\n"}, "valid.src: line 1 has the token 'd', which is not in train.src; models know only its tokens"),
        ({"test_tgt": "3\n"}, "test.tgt: line 1 has the token '3', which is not in train.tgt"),
        ({"test_src": "\n"}, "test.src is empty; give at least one sequence"),
        ({"train_src": "b a c\n\na a\n"}, "train.src: line 2 is empty"),
        ({"train_src": b"b a c\na \xff\n"}, "train.src: line 2 is not UTF-8 (byte 0xff); convert the file to UTF-8"),
    ],
)
def test_slips_name_the_file_and_the_line(changes, message, tmp_path):
    with pytest.raises(InvalidFile) as error:
        load_task(write(tmp_path, **changes))
    assert str(error.value).startswith(str(tmp_path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InvalidFile, match=r"nowhere is not a folder; give one with train.src"):
        load_task(FilesConfig(str(tmp_path / "nowhere")))
