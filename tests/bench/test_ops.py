"""`rfwp bench ops` on the CPU: checked first, timed side by side, kept as JSON lines."""

import json

import pytest
import torch

from rfwp.bench import contenders
from rfwp.bench.check import check_peer, check_small, relative_error
from rfwp.bench.contenders import OPS, Contender, delta_peers, example, general_peers, ours, run_op
from rfwp.bench.ops import bench_ops
from rfwp.bench.options import OpsOptions
from rfwp.bench.shapes import OP_SHAPES, OpShape, op_shape, scaled
from rfwp.errors import InvalidInput, UnknownName

CPU = torch.device("cpu")
TINY = OpShape(1, 5, 2, 4)


def quick(tmp_path, **options):
    options = {"backends": ("reference", "plain")} | options  # others compile for a while
    return OpsOptions(device="cpu", quick=True, out=tmp_path, commit="abc", **options)


def test_a_quick_run_times_every_op_on_every_backend_beside_its_peers(tmp_path):
    outcome = bench_ops(quick(tmp_path))
    assert outcome.failures == []
    timed = {(row.what.split()[0], row.backend) for row in outcome.rows if row.ms is not None}
    assert {(op, backend) for op in OPS for backend in ("reference", "plain")} <= timed
    assert {"LSTM", "attention"} <= {op for op, _ in timed}
    (path,) = outcome.files
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == len(outcome.rows)
    delta = next(line for line in lines if line["what"] == "delta forward + backward" and line["backend"] == "plain")
    assert delta["sizes"] == {"B": 2, "T": 33, "H": 2, "d": 16}
    assert delta["ms"]["p20"] <= delta["ms"]["median"] <= delta["ms"]["p80"]
    assert delta["tokens_per_s"] == pytest.approx(66 / delta["ms"]["median"] * 1e3)
    assert delta["error"] <= 1e-5
    assert delta["commit"] == "abc"
    assert delta["torch"] == torch.__version__
    assert {"device", "triton", "rfwp", "dirty", "time", "peak_mb", "floor_ratio"} <= set(delta)


def test_a_wrong_kernel_is_not_timed(tmp_path, monkeypatch):
    def wrong(op, backend, inputs, *arguments):
        y, *state = run_op(op, backend, inputs, *arguments)
        return (y * 1.01 if (op, inputs[0].dtype) == ("delta", torch.float32) else y), *state

    monkeypatch.setattr("rfwp.bench.check.run_op", wrong)
    outcome = bench_ops(quick(tmp_path, ops=("sum", "delta"), backends=("plain",), peers=False))
    (failure,) = outcome.failures
    assert "delta on plain: error" in failure
    untimed = [row for row in outcome.rows if row.ms is None]
    assert [(row.what, row.backend) for row in untimed] == [("delta forward + backward", "plain")]
    assert untimed[0].note.startswith("check failed: error")


def test_a_kernel_that_is_wrong_only_at_the_timed_shape_is_not_timed(tmp_path, monkeypatch):
    def wrong(op, backend, inputs, *arguments):
        y, *state = run_op(op, backend, inputs, *arguments)
        return (y + 1 if backend == "plain" and inputs[0].dtype == torch.float32 else y), *state

    monkeypatch.setattr(contenders, "run_op", wrong)
    outcome = bench_ops(quick(tmp_path, ops=("delta",), backends=("plain",), peers=False))
    assert "y at 2x33x2x16" in outcome.failures[0]
    assert outcome.rows[0].ms is None


def test_a_kernel_that_breaks_is_named_and_the_others_are_timed(tmp_path, monkeypatch):
    def breaks(op, backend, *arguments):
        if backend == "plain":
            raise RuntimeError("out of luck\nand more")
        return run_op(op, backend, *arguments)

    monkeypatch.setattr("rfwp.bench.check.run_op", breaks)
    monkeypatch.setattr("rfwp.bench.ops.plain_output", lambda *_: None)
    outcome = bench_ops(quick(tmp_path, ops=("delta",), peers=False))
    assert outcome.failures == ["delta on plain: RuntimeError: out of luck"]
    assert [row.ms is not None for row in outcome.rows] == [True, False]


def test_the_reference_is_left_out_where_it_would_take_too_long():
    assert contenders.affordable("reference", OP_SHAPES["quick"], CPU)
    assert not contenders.affordable("reference", OP_SHAPES["code"], CPU)
    assert contenders.affordable("plain", OP_SHAPES["code"], CPU)


def test_scaling_draws_what_it_timed_and_stops_in_time(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("rfwp.bench.ops", fromlist=["x"]).TOO_LONG_MS, "cpu", 0.0)
    outcome = bench_ops(quick(tmp_path, ops=("delta",), backends=("plain",), scaling="T"))
    delta = [row for row in outcome.rows if row.what.startswith("delta")]
    assert [row.sizes["T"] for row in delta] == [16, 32, 64]
    assert [row.note for row in delta] == ["", "would take too long", "would take too long"]
    assert sorted(path.suffix for path in outcome.files) == [".jsonl", ".png", ".svg"]
    assert all(path.stat().st_size > 0 for path in outcome.files)


def test_without_matplotlib_the_lines_are_kept_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    outcome = bench_ops(quick(tmp_path, ops=("sum",), scaling="d", peers=False, backward=False))
    assert outcome.texts == ['no plot: a plot needs: pip install "rfwp[report]"']
    assert [path.suffix for path in outcome.files] == [".jsonl"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_plain_passes_its_check(op, mode):
    assert check_small(op, "plain", 8, mode, CPU) <= {"fp32": 1e-5, "bf16": 1e-2}[mode]


def test_a_peer_is_checked_with_its_gradients():
    leaves, _ = example("delta", TINY, torch.float32, CPU)
    good = ours("delta", "plain", leaves)

    def forgets_beta(q, k, v, beta):
        return run_op("delta", "plain", (q, k, v, beta.detach() + 0 * beta))

    assert check_peer(good, 8, "fp32", CPU) <= 1e-5
    assert check_peer(Contender("peer", "delta", forgets_beta, leaves, ours=False), 8, "fp32", CPU) > 0.1
    assert delta_peers(leaves, "fp32") == []  # they need a GPU


def test_the_lstm_that_is_timed_is_an_lstm_with_all_its_gradients():
    lstm, attention = general_peers(TINY, "fp32", CPU)
    assert lstm.name == "CPU nn.LSTM(4, 8)"
    y = lstm.forward()[0]
    assert y.shape == (1, 5, 8)
    assert len(lstm.both(torch.ones_like(y))) == 5
    assert attention.forward()[0].shape == (1, 5, 2, 4)


def test_a_relative_error_of_something_not_finite_is_infinite():
    assert relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert relative_error(torch.tensor([1.0, 1.1]), torch.tensor([1.0, 1.0])) == pytest.approx(0.1 / 2**0.5, rel=1e-4)


def test_inputs_have_the_strides_of_a_projection():
    (q, *_), _ = example("recurrent_delta", TINY, torch.float32, CPU)
    assert not q.is_contiguous()
    assert q.stride() == (5 * 2 * 13, 2 * 13, 13, 1)


def test_shapes_by_name_and_by_sizes():
    assert op_shape("code") == OpShape(64, 450, 16, 16)
    assert op_shape("8x4096x8x128") == OP_SHAPES["long"]
    assert [shape.T for shape in scaled(op_shape("scaling"), "T", quick=False)][::8] == [256, 65_536]
    with pytest.raises(UnknownName, match="unknown shape 'cod'; did you mean 'code'"):
        op_shape("cod")
    with pytest.raises(InvalidInput, match="shape '8x16' is not B x T x H x d"):
        op_shape("8x16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": ("delt",)}, "unknown op 'delt'; did you mean 'delta'"),
        ({"backends": ("plan",)}, "unknown backend 'plan'; did you mean 'plain'"),
        ({"graph": True}, "--graph needs a GPU"),
        ({"dtype": ()}, "--dtype is empty"),
    ],
)
def test_bad_options_are_named(tmp_path, options, message):
    with pytest.raises((UnknownName, InvalidInput), match=message):
        bench_ops(quick(tmp_path, **options))
    with pytest.raises(UnknownName, match="unknown op 'summ'"):
        example("summ", TINY, torch.float32, CPU)
