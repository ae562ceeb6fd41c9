import ast
import os
from pathlib import Path

import pytest

import rfwp
from rfwp.atomic import remove_unfinished, whole_file, write_whole


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(path) as file:
        file.write(b"new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"), whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_process_left_is_removed_when_it_is_old(tmp_path):
    path = tmp_path / "to[kens].npy"
    with whole_file(path) as file:
        file.write(b"under way")
        remove_unfinished(path)
    old, other = tmp_path / f".{path.name}.0123.unfinished", tmp_path / ".another.0123.unfinished"
    for leftover in (old, other):
        leftover.write_bytes(b"cut")
        os.utime(leftover, (0, 0))
    remove_unfinished(path)
    assert not old.exists()
    assert other.exists()
    assert path.read_bytes() == b"under way"


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    path = tmp_path / "no folder" / "file"
    with pytest.raises(FileNotFoundError) as error:
        write_whole(path, b"new")
    assert error.value.filename == str(path)


def test_two_that_write_at_once_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_gone_does_not_come_back(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "gone" / "file"):
        pass
    assert os.listdir(tmp_path) == []


def test_content_is_written_whole(tmp_path):
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_nobody_writes_or_moves_a_file_in_another_way():
    """Folders have their own way, which is a rename."""
    for path in Path(rfwp.__file__).parent.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        found = {ast.unparse(call) for call in calls if isinstance(call, ast.Attribute)}
        others = {name for name in found if name.endswith((".write_text", ".write_bytes")) or name == "os.replace"}
        assert path.name == "atomic.py" or not others, f"{path}: {others}"
