"""`rfwp bench train` on the CPU: models of the paper's shapes, the floor under them, and the check before timing."""

import dataclasses

import pytest
import torch

from rfwp.bench.language import LANGUAGE_MODELS, language_batches, language_config, language_sizes
from rfwp.bench.models import MODELS, Product, build_model
from rfwp.bench.options import TrainOptions
from rfwp.bench.shapes import MODEL_SHAPES, model_shape
from rfwp.bench.train import Setting, bench_train, choose, dropout_is_random, loss_error
from rfwp.errors import InvalidInput, UnknownName
from rfwp.layers import FWP
from rfwp.layers.state import flat
from rfwp.lm.carried import Carried
from rfwp.models import SequenceModel
from rfwp.presets import model_config
from rfwp.train import TrainStep

CPU, META = torch.device("cpu"), torch.device("meta")
QUICK = MODEL_SHAPES["quick"]


def quick(tmp_path, **options):
    return TrainOptions(device="cpu", quick=True, out=tmp_path, commit="abc", **options)


def count(name, shape="code"):
    return sum(p.numel() for p in build_model(name, MODEL_SHAPES[shape], META).parameters())


def test_a_quick_run_times_all_models_and_gives_their_ratio_to_the_floor(tmp_path):
    outcome = bench_train(quick(tmp_path))
    assert outcome.failures == []
    assert [row.what for row in outcome.rows] == [f"train step {name}" for name in MODELS]
    floor = outcome.rows[0]
    assert floor.floor_ratio == 1
    for row in outcome.rows:
        assert row.floor_ratio == pytest.approx(row.ms.median / floor.ms.median)
        assert row.tokens_per_s == pytest.approx(66 / row.ms.median * 1e3)


def test_models_have_the_parameters_of_the_paper():
    assert count("delta_net") == 3_184_154
    assert count("rdn") == 3_234_330
    assert count("delta_rnn") == 3_724_826
    assert count("lstm") == 405_018
    assert count("rdn", "thin") == 1_120_538


def test_the_floor_is_a_delta_net_with_all_its_projections_and_no_fast_weights():
    assert count("floor") == count("delta_net")
    model = build_model("floor", QUICK, CPU)
    assert not any(isinstance(m, FWP) for m in model.modules())
    layer = next(m for m in model.modules() if isinstance(m, Product))
    x = torch.randn(2, 3, 32)
    u = (x @ layer.slow.W.weight.T).unflatten(-1, (2, 3 * 16 + 1))
    product = u[..., :16] * u[..., 16:32] * u[..., 32:48]
    torch.testing.assert_close(layer(x)[0], product.flatten(-2) @ layer.out.weight.T)


def test_ops_run_on_the_backend_that_was_asked_for():
    model = build_model("delta_rnn", QUICK, CPU, backend="reference")
    assert {m.backend for m in model.modules() if isinstance(m, FWP)} == {"reference"}


@pytest.mark.parametrize("model", ["linear_transformer", "rdn", "lstm"])
def test_the_plain_step_passes_the_check(model):
    setting = Setting(model, "fp32", "no", graph=False)
    assert loss_error(setting, QUICK, CPU, "auto") <= 1e-4
    assert dropout_is_random(setting, QUICK, CPU, "auto")


def test_a_step_that_forgets_the_learning_rate_fails_the_check_and_is_not_timed(tmp_path, monkeypatch):
    plain = TrainStep.__call__

    def forgetful(self, *batch):
        if self.precision == "tf32" and all(m.backend != "reference" for m in self.model.modules() if isinstance(m, FWP)):
            self.optimiser.param_groups[0]["lr"] = 0.0
        return plain(self, *batch)

    monkeypatch.setattr(TrainStep, "__call__", forgetful)
    outcome = bench_train(quick(tmp_path, models=("delta_net",), precision=("fp32", "tf32"), check=True))
    (failure,) = outcome.failures
    assert failure.startswith("delta_net tf32 eager: losses differ by")
    assert [row.ms is None for row in outcome.rows] == [False, True]


def test_dropout_that_repeats_itself_fails_the_check(monkeypatch):
    plain = TrainStep.__call__

    def seeded(self, *batch):
        torch.manual_seed(0)
        return plain(self, *batch)

    monkeypatch.setattr(TrainStep, "__call__", seeded)
    assert not dropout_is_random(Setting("delta_net", "fp32", "no", graph=False), QUICK, CPU, "auto")


def test_a_model_that_breaks_is_named_and_the_others_are_timed(tmp_path, monkeypatch):
    def diverges(model, tokens, targets):
        return model.loss(tokens, targets)[0] * (float("nan") if hasattr(model.core, "layer") else 1)

    monkeypatch.setattr("rfwp.bench.train.loss_of", diverges)
    outcome = bench_train(quick(tmp_path, models=("floor", "lstm")))
    assert outcome.failures == ["quick lstm fp32 eager: ArithmeticError: the loss is not finite"]
    assert [row.ms is None for row in outcome.rows] == [False, True]


def test_a_profile_names_what_takes_time(tmp_path):
    outcome = bench_train(quick(tmp_path, models=("floor",), profile=True))
    assert "aten::" in outcome.texts[0]
    assert " ms " in outcome.texts[0]


def test_settings_multiply_and_an_lstm_is_never_compiled():
    options = TrainOptions(models=("rdn", "lstm"), precision=("fp32", "bf16"), compile=("no", "blocks"))
    settings = choose(options, CPU)
    assert len(settings) == 6
    assert {s.region for s in settings if s.model == "lstm"} == {"no"}
    on_gpu = choose(TrainOptions(models=("rdn",)), torch.device("cuda"))
    assert [s.how for s in on_gpu] == ["compiled blocks + graph"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ("rnd",)}, "unknown model 'rnd'; did you mean 'rdn'"),
        ({"shape": ("listop",)}, "unknown shape 'listop'; did you mean 'listops'"),
        ({"graph": ("yes",)}, "--graph yes needs a GPU"),
        ({"compile": ()}, "need at least one value each"),
    ],
)
def test_bad_options_are_named(tmp_path, options, message):
    with pytest.raises((UnknownName, InvalidInput), match=message):
        bench_train(quick(tmp_path, **options))


def test_an_unknown_model_is_named():
    with pytest.raises(UnknownName, match="unknown model 'gru'"):
        build_model("gru", QUICK, CPU)
    assert model_shape("lm").sizes == {"B": 96, "T": 256, "layers": 16, "width": 128, "heads": 8, "ff": 2048}


# --- With the vocabulary of a language model ---


def test_language_models_are_table_1s_with_the_whole_vocabulary():
    shape = MODEL_SHAPES["lm-vocabulary"]
    for name, preset in LANGUAGE_MODELS.items():
        assert language_config(name, shape) == model_config(preset)
    assert len(LANGUAGE_MODELS) == 10
    assert shape.sizes["vocabulary"] == 267_735
    assert language_sizes("delta_mlp", shape) == {**shape.sizes, "layers": 11}
    assert language_sizes("rdn", shape) == shape.sizes


def test_a_quick_language_run_times_all_rows_also_with_carried_state(tmp_path):
    # tiny, whatever shape is named
    outcome = bench_train(quick(tmp_path, shape=("lm-vocabulary",)))
    assert outcome.failures == []
    assert {row.shape for row in outcome.rows} == {"lm-quick"}
    assert [row.what for row in outcome.rows] == [f"train step {name}" for name in LANGUAGE_MODELS]
    assert all(row.tokens_per_s == pytest.approx(66 / row.ms.median * 1e3) for row in outcome.rows)


def test_language_steps_pass_the_check(tmp_path):
    outcome = bench_train(quick(tmp_path, shape=("lm-quick",), models=("delta_net", "rdn_full_context"), check=True))
    assert outcome.failures == []
    assert all(row.ms for row in outcome.rows)


def test_random_words_are_as_rare_as_those_of_a_text():
    shape = dataclasses.replace(MODEL_SHAPES["lm-vocabulary"], B=16)
    words = torch.stack([targets for _, targets in language_batches(shape, CPU)])
    assert 0.05 < (words >= 20_000).double().mean() < 0.10
    tokens, targets = language_batches(shape, CPU)[0]
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_a_model_of_another_kind_of_shape_is_named(tmp_path):
    with pytest.raises(UnknownName, match="unknown model 'floor'"):
        bench_train(quick(tmp_path, shape=("lm-quick",), models=("floor",)))


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_step_never_looks_at_a_value(name):
    """A CUDA graph could not hold it; on the device meta there are no values."""
    shape = MODEL_SHAPES["lm-quick"]
    with META:
        model = SequenceModel(language_config(name, shape))
        tokens = torch.zeros(shape.B, shape.T, dtype=torch.long)
    carried = Carried(model, shape.B, META)
    loss, state = model.loss(tokens, tokens, carried.nested(carried.tensors), capacity=(20, 20))
    loss.backward()
    assert loss.is_meta
    if name.endswith("full_context"):
        assert [t.shape for t in flat(state)] == [t.shape for t in carried.tensors]
