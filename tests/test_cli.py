"""The command line as a user sees it."""

import io
import os
import pkgutil
import subprocess
import sys

import pytest
import torch

import rfwp.commands
from rfwp import cli
from rfwp.cli import COMMANDS, main
from rfwp.commands.console import console
from rfwp.commands.usage import one_line


def run(capsys, *arguments):
    try:
        main(list(arguments))
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def test_presets_lists_every_table_with_counts_here_and_in_the_paper(capsys):
    code, out, _ = run(capsys, "presets")
    assert code == 0
    for words in (
        ("lm/rdn", "Recurrent/Delta fast Linear Net", "44,135,130", "44.1 M"),
        ("code-execution-5/delta-rnn", "Feedforward/Delta fast RNN", "3,724,826", "3.7 M"),
        ("listops-15/lstm-4096", "LSTM, 4096 units", "69,281,546", "-"),
        ("atari/feedforward-gated", "Feedforward, gated", "1,668,631", "1.7 M"),
    ):
        line = next(line for line in out.splitlines() if line.startswith(words[0] + " "))
        assert all(word in line for word in words)


def test_presets_show_a_variant_that_there_is(capsys):
    _, out, _ = run(capsys, "presets", "listops-10")
    assert out.splitlines()[-1] == "6 presets. A variant goes behind a colon: rfwp show listops-10/transformer:printed"
    _, out, _ = run(capsys, "presets", "atari-large")
    assert out.splitlines()[-1] == "1 preset"


def test_presets_of_one_table(capsys):
    code, out, _ = run(capsys, "presets", "code-execution-5-thin")
    assert code == 0
    assert "code-execution-5-thin/rdn" in out
    assert "lm/rdn" not in out


def test_show_gives_config_parts_and_variants(capsys):
    code, out, _ = run(capsys, "show", "lm/delta-mlp-b")
    assert code == 0
    assert "44,322,746 parameters here | 44.3 M in the paper" in out
    assert "authors_mlp(blocks=1)" in out
    assert ":live" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "lm/rnd"], "rfwp: unknown preset 'lm/rnd'; did you mean 'lm/rdn'?"),
        (["show", "lm/rdn:alive"], "rfwp: unknown variant of lm/rdn 'alive'"),
        (["shw", "lm/rdn"], "rfwp: unknown command 'shw'; did you mean 'show'?"),
        (["presets", "listops"], "rfwp: unknown table 'listops'; did you mean 'listops-1"),
        # what the parser finds
        (
            ["train", "lm/rdn", "--seeds", "1,2"],
            "rfwp: --seeds: expected whole numbers with spaces between them, saw '1,2'; see: rfwp train --help",
        ),
        (["train", "lm/rdn", "--epochs", "1e3"], "rfwp: --epochs: expected a whole number, saw '1e3'; see: rfwp train --help"),
        (["reproduce", "table-2", "--jobs", "all"], "rfwp: --jobs: expected a whole number, saw 'all'; see: rfwp reproduce"),
        (["reproduce", "table-2", "--budget-seconds", "1h"], "rfwp: --budget-seconds: expected a number, saw '1h'; see: rfwp"),
        (["train", "lm/rdn", "--seed", "3"], "options: --seed 3; did you mean --seeds? see: rfwp train --help"),
        (
            ["eval", "run", "--split", "all"],
            "invalid choice 'all' for argument '--split'. Expected one of ('train', 'valid', 'test')",
        ),
        (["eval", "nowhere", "--stride", "2"], "rfwp: nowhere is no run folder: it has no config.json"),
        (["eval", "run", "--epochs", "3"], "options: --epochs 3; --epochs is for rfwp"),
        (
            ["bench", "train", "--quikc"],
            "rfwp: unrecognized options: --quikc; did you mean --quick? see: rfwp bench train --help",
        ),
        (["bench", "trian"], "rfwp: unrecognized options: trian; available subcommands: ops, train, rl, plot; see: rfwp bench"),
        (["eval"], "rfwp: missing from rfwp eval: PATH The folder that `rfwp train` made"),
        (["reproduce", "table-2", "--jobs"], "rfwp: missing value for argument '--jobs'. Expected 1 values; see: rfwp reproduce"),
        ([], "rfwp: expected one of {presets, show, "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_help_says_where_to_start(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for word in ("presets", "show", "Start here", "rfwp show lm/rdn"):
        assert word in out


def test_every_file_of_commands_is_listed():
    files = {module.name for module in pkgutil.iter_modules(rfwp.commands.__path__)} - {"console", "usage"}
    assert {command.__module__ for command in COMMANDS.values()} == {f"rfwp.commands.{name}" for name in files}


def test_module_runs_like_the_command():
    done = subprocess.run([sys.executable, "-m", "rfwp", "presets", "atari-large"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3,368,919" in done.stdout


@pytest.mark.parametrize("stderr", [False, True])
def test_without_a_terminal_both_streams_have_lines_of_160_characters(capsys, monkeypatch, stderr):
    monkeypatch.setenv("COLUMNS", "80")
    line = "word " * 31
    console(stderr=stderr).print(line.strip())
    seen = capsys.readouterr()
    assert (seen.err if stderr else seen.out) == line.strip() + "\n"
    assert (seen.out if stderr else seen.err) == ""


def test_log_lines_are_not_broken_without_a_terminal():
    code = "from rfwp.cli import main\nmain(['presets', 'atari-large'])\n"
    code += "import logging\nlogging.getLogger('rfwp').info('word ' * 25)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.count("word") == 25


@pytest.mark.parametrize("arguments", [("presets", "atari"), ("train", "--help")])
def test_a_closed_pipe_ends_quietly(arguments):
    reader, writer = os.pipe()
    os.close(reader)  # whoever read has gone before the first line is written
    done = subprocess.run([sys.executable, "-m", "rfwp", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


def test_output_to_a_full_disk_is_one_line():
    # stands for a print to such a disk
    code = """
import errno
from rfwp import cli

def presets() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")

cli.COMMANDS["presets"] = presets
cli.main(["presets"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "rfwp: cannot write the output: No space left on device\n")


def test_what_is_no_box_is_said_as_it_is():
    assert (
        one_line("another version of the parser\nspeaks like this\n", "rfwp") == "another version of the parser\nspeaks like this"
    )


def test_a_mistake_of_another_process_than_the_first_is_said_by_it(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(cli, "PATIENCE", 0.0)
    code, _, err = run(capsys, "show", "lm/rnd")
    assert code == 2
    assert err.startswith("rfwp: process 3: unknown preset 'lm/rnd'")


def test_a_process_that_loses_another_says_so_in_one_line(capsys, monkeypatch):
    def lose(arguments, description):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")

    monkeypatch.setattr(cli.Parser, "run", lambda self, *given: lose(*given))
    with pytest.raises(RuntimeError, match="gloo"):
        run(capsys, "presets")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(cli, "PATIENCE", 0.0)
    code, _, err = run(capsys, "presets")
    assert code == 2
    assert err.startswith(
        "rfwp: another process is gone ([gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer);"
    )
    assert len(err.splitlines()) == 1


def _fill_memory():
    torch.empty(2**58)


def _fill_gpu():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.81 GiB of which"
    )


def _fill_python():
    raise MemoryError


@pytest.mark.parametrize(
    ("fill", "asked"),
    [(_fill_memory, "1152921504606846976 bytes"), (_fill_gpu, "2.50 GiB"), (_fill_python, "more than there is")],
)
def test_too_little_memory_is_one_line_that_says_how_to_need_less(capsys, monkeypatch, fill, asked):
    monkeypatch.setattr(cli.Parser, "run", lambda self, *given: fill())
    code, _, err = run(capsys, "presets")
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.startswith(f"rfwp: not enough memory: {asked} asked for; use a smaller model or batch")


def test_what_a_terminal_cannot_show_is_replaced(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    cli.main(["presets", "atari-large"])
    output.write("日本\n")
    output.flush()
    assert output.buffer.getvalue().endswith(b"??\n")


def test_a_closed_output_is_no_mistake():
    done = subprocess.run(f"{sys.executable} -m rfwp presets atari-large >&-", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
