"""The command `rfwp bench` as a user sees it."""

import pytest
import torch

from rfwp.bench.records import Row, Timing, append
from rfwp.cli import main
from rfwp.environment import environment
from rfwp.report.plots import _lines


def run(capsys, *arguments):
    try:
        main(["bench", *arguments])
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def test_ops_prints_a_table_and_says_where_the_lines_are(capsys, tmp_path):
    code, out, _ = run(
        capsys,
        "ops",
        "--quick",
        "--device",
        "cpu",
        "--ops",
        "delta",
        "sum",
        "--backends",
        "reference",
        "plain",
        "--out",
        str(tmp_path),
    )
    assert code == 0
    for words in ("delta forward + backward", "plain", "reference", "PyTorch attention", "tokens/s", ".jsonl"):
        assert words in out
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


def test_train_prints_a_table_with_the_floor(capsys, tmp_path):
    code, out, _ = run(capsys, "train", "--quick", "--device", "cpu", "--models", "floor", "delta_net", "--out", str(tmp_path))
    assert code == 0
    assert "train step delta_net" in out
    assert "/ floor" in out


def test_a_failed_check_is_exit_code_1_and_says_which(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("rfwp.bench.ops.check_small", lambda *_: 0.5)
    arguments = ("--quick", "--device", "cpu", "--ops", "sum", "--backends", "plain", "--no-peers", "--out", str(tmp_path))
    code, out, err = run(capsys, "ops", *arguments)
    assert code == 1
    assert "rfwp: check failed: sum on plain: error 5.0e-01 > 1e-05" in err
    assert "check failed" in out


def test_a_scaling_run_can_be_drawn_from_its_lines(capsys, tmp_path):
    arguments = ("--quick", "--device", "cpu", "--ops", "delta", "--backends", "plain", "--scaling", "B", "--out", str(tmp_path))
    assert run(capsys, "ops", *arguments)[0] == 0
    (path,) = tmp_path.glob("*.jsonl")
    for drawing in tmp_path.glob("*.??g"):
        drawing.unlink()
    code, out, _ = run(capsys, "plot", str(path), "--scaling", "B")
    assert code == 0
    assert "-B.png" in out.replace("\n", "")
    assert len(list(tmp_path.glob("*-B.??g"))) == 2
    assert run(capsys, "ops", *arguments, "--scaling", "d")[0] == 0  # a run over another size in the same file
    code, out, _ = run(capsys, "plot", str(path), "--scaling", "B")
    assert "quick 4x33x2x16" in out
    assert "quick 2x33x2x8" not in out
    code, _, err = run(capsys, "plot", str(path), "--scaling", "T")
    assert code == 2
    assert "has no run with several T" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ops", "--ops", "dleta"], "rfwp: unknown op 'dleta'; did you mean 'delta'?"),
        (["ops", "--shapes", "coed"], "rfwp: unknown shape 'coed'; did you mean 'code'?"),
        (["train", "--models", "rdm"], "rfwp: unknown model 'rdm'; did you mean 'rdn'?"),
        (["ops", "--device", "cuda:99"], "rfwp: device 'cuda:99' is not here: PyTorch sees"),
        (["plot", "nowhere.jsonl"], "rfwp: nowhere.jsonl is no file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_the_later_of_two_timings_is_drawn():
    sizes = {"B": 1, "T": 8}
    rows = [Row("LSTM forward", "s", sizes, "fp32", "nn.LSTM(4, 8), graph", ms=Timing(ms, ms, ms, 5)) for ms in (1.0, 2.0)]
    assert _lines(rows, "T") == {"LSTM forward · nn.LSTM, graph · fp32": [(8, 2.0, None)]}


def test_untimed_rows_are_not_drawn(capsys, tmp_path):
    rows = [Row("delta forward", "scaling", {"T": T}, "fp32", "plain", note="out of memory") for T in (1, 2)]
    path = append(rows, environment(torch.device("cpu"), commit="abc"), tmp_path)
    assert run(capsys, "plot", str(path))[0] == 2
