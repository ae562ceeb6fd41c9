import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import huggingface_hub
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import rfwp
from rfwp.config import AgentConfig, AttentionConfig, BlocksConfig, FWPConfig, HighwayConfig, LSTMConfig, SequenceConfig
from rfwp.errors import InvalidFile, InvalidInput, MissingExtra
from rfwp.layers import FWP, Attention
from rfwp.models import Agent, SequenceModel, load, pretrained

SMALL = {"width": 12, "layers": 2, "heads": 3, "ff": 10}
RDN = BlocksConfig(layer=FWPConfig(slow="recurrent", phi="softmax"), dropout=0.1, **SMALL)
EYES = {"channels": (3,), "features": 8, "frames": 2, "pixels": 9}
CONFIGS = {
    "rdn": SequenceConfig(23, 9, RDN, embedding=12),
    "lstm": SequenceConfig(23, 9, LSTMConfig(hidden=7, layers=2), embedding=6),
    "language_model": SequenceConfig(
        23,
        23,
        BlocksConfig(layer=AttentionConfig(bias=True, window=5), wiring="lm", final_norm=True, **SMALL),
        embedding=12,
        positions="descending",
        cutoffs=(5, 9),
    ),
    "agent": AgentConfig(core=RDN, **EYES),
    "highway_agent": AgentConfig(core=HighwayConfig(5), **EYES),
}


def make(config, seed=0):
    torch.manual_seed(seed)
    return (SequenceModel if isinstance(config, SequenceConfig) else Agent)(config).eval()


def output(model):
    torch.manual_seed(1)
    if isinstance(model, SequenceModel):
        return model(torch.randint(0, 23, (2, 7)))[0]
    frames = torch.randint(0, 256, (2, 7, 2, 9, 9), dtype=torch.uint8)
    return model(frames, torch.randn(2, 7))[0].logits


@pytest.fixture
def folder(tmp_path):
    make(CONFIGS["rdn"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip_gives_identical_outputs(name, tmp_path):
    model = make(CONFIGS[name])
    model.save_pretrained(tmp_path)
    for loaded in (load(tmp_path), load(str(tmp_path)), type(model).from_pretrained(tmp_path)):
        assert type(loaded) is type(model)
        assert loaded.config == model.config
        assert not loaded.training
        assert torch.equal(output(loaded), output(model))
        assert all(p.requires_grad for p in loaded.parameters())


def test_round_trip_keeps_the_dtype(tmp_path):
    model = make(CONFIGS["lstm"]).double()
    model.save_pretrained(tmp_path)
    assert torch.equal(output(load(tmp_path)), output(model))
    assert {p.dtype for p in load(tmp_path).parameters()} == {torch.float64}


def test_tied_weights_are_saved_and_loaded(tmp_path):
    model = make(replace(CONFIGS["rdn"], outputs=23))
    model.head.weight = model.embedding.weight
    model.save_pretrained(tmp_path)
    assert torch.equal(output(load(tmp_path)), output(model))


# --- Models that their config does not describe ---


def layer_0(model):
    return model.core.blocks[0].layer


CHANGES = {
    "extra (Linear) is unknown": lambda m: setattr(m, "extra", nn.Linear(2, 2)),
    "core.blocks.2 (ReLU) is unknown": lambda m: m.core.blocks.append(nn.ReLU()),
    "core.blocks.1 is missing": lambda m: m.core.blocks.pop(1),
    "core.blocks.0.ff.1 is GELU, expected ReLU": lambda m: m.core.blocks[0].ff.__setitem__(1, nn.GELU()),
    "core.blocks.0.layer is Attention, expected FWP": lambda m: setattr(m.core.blocks[0], "layer", Attention(12, 3)),
    "core.blocks.0.layer has another composition": lambda m: setattr(
        m.core.blocks[0], "layer", FWP(replace(layer_0(m).composition, phi="elu_sum"), 12, 3)
    ),
    "core.blocks.0.layer has another scale_output": lambda m: setattr(layer_0(m), "scale_output", True),
    "core.blocks.1 has another wiring": lambda m: setattr(m.core.blocks[1], "wiring", "post"),
    "core.blocks.0.ff_norm has another eps": lambda m: setattr(m.core.blocks[0].ff_norm, "eps", 0.1),
    "head is ParametrizedLinear, expected Linear": lambda m: parametrizations.weight_norm(m.head),
    "head.weight is missing": lambda m: prune.l1_unstructured(m.head, "weight", 2),
    "offset is unknown": lambda m: m.register_buffer("offset", torch.zeros(1)),
    "head.weight has shape (8, 12), expected (9, 12)": lambda m: setattr(m, "head", nn.Linear(12, 8)),
    "head.bias is torch.int64, expected a floating dtype": lambda m: setattr(
        m.head, "bias", nn.Parameter(torch.zeros(9, dtype=torch.long), requires_grad=False)
    ),
    "dtypes are mixed: torch.bfloat16, torch.float32": lambda m: m.head.bfloat16(),
    "core is Stack, expected LSTMCore": lambda m: setattr(m, "config", CONFIGS["lstm"]),
}


@pytest.mark.parametrize("difference", CHANGES)
def test_a_model_that_its_config_would_not_give_back_is_refused_before_anything_is_written(difference, tmp_path):
    model = make(CONFIGS["rdn"])
    CHANGES[difference](model)
    with pytest.raises(InvalidInput) as caught:
        model.save_pretrained(tmp_path / "new")
    assert difference in str(caught.value)
    assert "or keep the weights alone: torch.save(model.state_dict(), path)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_model_without_its_parametrisations_is_saved_again(tmp_path):
    model = make(CONFIGS["rdn"])
    parametrizations.weight_norm(model.head)
    nn.utils.parametrize.remove_parametrizations(model.head, "weight")
    model.save_pretrained(tmp_path)
    assert torch.equal(output(load(tmp_path)), output(model))


def test_what_changes_no_output_is_saved(tmp_path):
    """Dropout, backends, frozen weights, and a layer that stands in two places."""
    model = make(CONFIGS["rdn"])
    model.core.blocks[0].dropout = nn.Identity()
    model.core.blocks[0].ff[2].p = 0.9
    layer_0(model).backend = "reference"
    model.head.requires_grad_(False)
    model.core.blocks[1] = model.core.blocks[0]
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(output(load(tmp_path)), output(model))


class Wider(SequenceModel):
    """With a layer of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.extra = nn.Linear(3, 3)


class Named(SequenceModel):
    """With arguments of its own."""

    def __init__(self, name, *, seed):
        torch.manual_seed(seed)
        super().__init__(CONFIGS[name])


def test_models_of_a_subclass_are_saved(tmp_path):
    model = Wider(CONFIGS["rdn"])
    model.save_pretrained(tmp_path / "wider")
    assert torch.equal(Wider.from_pretrained(tmp_path / "wider").extra.weight, model.extra.weight)
    model = Named("rdn", seed=3).eval()
    model.save_pretrained(tmp_path / "named")
    assert torch.equal(output(load(tmp_path / "named")), output(model))


def test_saving_draws_no_random_numbers(tmp_path):
    model = make(CONFIGS["agent"])
    before = torch.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


# --- Loading ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_is_loaded_in_another_dtype(folder, dtype):
    for model in (load(folder, dtype=dtype), SequenceModel.from_pretrained(folder, dtype=dtype)):
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert torch.equal(output(model), output(make(CONFIGS["rdn"]).to(dtype)))


@pytest.mark.parametrize("dtype", ["bfloat16", torch.int8, torch.complex64])
def test_a_dtype_that_no_model_has_is_refused_in_one_line(folder, dtype):
    with pytest.raises(InvalidInput, match=r"is no floating dtype; use for instance torch\.bfloat16"):
        load(folder, dtype=dtype)


def test_loading_draws_no_random_numbers(folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_model_trains_without_touching_its_file(folder):
    model = load(folder).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    model.loss(torch.randint(0, 23, (2, 7)), torch.randint(0, 9, (2, 7)))[0].backward()
    optimiser.step()
    assert not torch.equal(output(model.eval()), output(load(folder)))
    assert torch.equal(output(load(folder)), output(make(CONFIGS["rdn"])))


def test_a_folder_holds_weights_and_config_and_nothing_else(folder):
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    data = json.loads((folder / "config.json").read_text())
    assert data["rfwp"] == rfwp.__version__
    assert data["model"]["kind"] == "sequence"


def test_saving_again_replaces_the_earlier_model(folder):
    other = make(CONFIGS["lstm"])
    other.save_pretrained(folder)
    assert torch.equal(output(load(folder)), output(other))


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_rename_leaves_the_earlier_save_whole(folder, monkeypatch, failing):
    calls, replace_file = [], os.replace

    def refuse(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError("no space left on device")
        return replace_file(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InvalidFile, match=r"cannot save to .*: no space left on device"):
        make(CONFIGS["lstm"]).save_pretrained(folder)
    # one more puts the earlier config back
    assert len(calls) == (1 if failing == 1 else 3)
    assert torch.equal(output(load(folder)), output(make(CONFIGS["rdn"])))
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_a_failed_write_leaves_the_earlier_save_whole(folder, monkeypatch):
    def full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidFile, match="no space left"):
        make(CONFIGS["lstm"]).save_pretrained(folder)
    assert torch.equal(output(load(folder)), output(make(CONFIGS["rdn"])))
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_a_failed_first_save_leaves_nothing(tmp_path, monkeypatch):
    replace_file = os.replace

    def refuse(source, target):
        if str(target).endswith("model.safetensors"):
            raise OSError("no space left on device")
        return replace_file(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InvalidFile):
        make(CONFIGS["lstm"]).save_pretrained(tmp_path)
    assert os.listdir(tmp_path) == []


def write(folder, **changes):
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(data | changes))


def edit_model(folder, **changes):
    write(folder, model=json.loads((folder / "config.json").read_text())["model"] | changes)


def swap_weights(folder, config):
    make(config).save_pretrained(folder.parent / "other")
    os.replace(folder.parent / "other" / "model.safetensors", folder / "model.safetensors")


def truncate(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


DAMAGE = {
    "no config.json in": lambda f: (f / "config.json").unlink(),
    "config.json is not readable as JSON": lambda f: (f / "config.json").write_text("{"),
    "config.json is not readable as JSON: 'utf-8'": lambda f: (f / "config.json").write_bytes(b'{"\xff'),
    "was not written by rfwp: expected 'rfwp' and 'model', saw architectures": lambda f: (f / "config.json").write_text(
        '{"architectures": ["Bert"]}'
    ),
    "was not written by rfwp: expected 'rfwp' and 'model', saw list": lambda f: (f / "config.json").write_text("[1]"),
    "was not written by rfwp: expected 'rfwp' and 'model', saw nothing": lambda f: (f / "config.json").write_text("{}"),
    "holds a run; it has no checkpoint yet": lambda f: (f / "config.json").write_text('{"rfwp": "0", "run": {}}'),
    "unknown kind in model 'sequenze'; did you mean 'sequence'?": lambda f: edit_model(f, kind="sequenze"),
    "expected an object with a 'kind'": lambda f: write(f, model=[1, 2]),
    "expected an object with a 'kind', saw": lambda f: edit_model(f, kind=["sequence"]),
    "kind 'lstm' is a part of a model, expected 'sequence' or 'agent'": lambda f: write(f, model={"kind": "lstm"}),
    "unknown field in model (sequence) 'inputz'": lambda f: edit_model(f, inputz=3),
    "embedding=16 differs from the blocks' width=12": lambda f: edit_model(f, embedding=16),
    "was written by rfwp 99.0.1, this is": lambda f: write(f, rfwp="99.0.1"),
    "no model.safetensors in": lambda f: (f / "model.safetensors").unlink(),
    "model.safetensors is truncated or no safetensors file": truncate,
    "no safetensors file": lambda f: (f / "model.safetensors").write_bytes(b""),
    "no safetensors file: ": lambda f: (f / "model.safetensors").write_bytes(b"hello, I am text"),
    "core.blocks.0.layer.slow.R is missing; ": lambda f: swap_weights(f, CONFIGS["lstm"]),
    "head.weight has shape (8, 12), expected (9, 12)": lambda f: swap_weights(f, replace(CONFIGS["rdn"], outputs=8)),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_damaged_or_foreign_folder_is_named_in_one_line(folder, message):
    DAMAGE[message](folder)
    with pytest.raises(InvalidFile) as caught:
        load(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_weights_of_whole_numbers_are_refused(folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["head.bias"] = tensors["head.bias"].long()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidFile, match=r"head\.bias is torch\.int64, expected a floating dtype"):
        load(folder)


def test_a_pickle_is_never_opened(folder):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(folder / "sprung"),)

    for name in ("model.safetensors", "pytorch_model.bin"):
        (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidFile, match="no safetensors file"):
        load(folder)
    assert not (folder / "sprung").exists()


def test_a_missing_folder_is_named():
    with pytest.raises(InvalidFile, match="no folder /no/such/place; give the folder of a saved model, or a hub id"):
        load("/no/such/place")
    with pytest.raises(InvalidFile, match=r"no folder \./place"):
        load("./place")


def test_a_file_is_not_a_folder(folder):
    with pytest.raises(InvalidFile, match="is a file; give the folder that holds"):
        load(folder / "config.json")
    with pytest.raises(InvalidFile, match="cannot save to"):
        make(CONFIGS["lstm"]).save_pretrained(folder / "config.json")


def test_the_wrong_class_is_told_which_function_to_use(folder):
    with pytest.raises(InvalidFile, match=r"holds a model of kind 'sequence', which Agent cannot load; use rfwp\.load"):
        Agent.from_pretrained(folder)


def test_a_model_without_values_cannot_be_saved(tmp_path):
    with torch.device("meta"):
        model = make(CONFIGS["lstm"])
    with pytest.raises(InvalidInput, match="meta device has no values to save"):
        model.save_pretrained(tmp_path)


def test_of_a_hub_id_only_the_files_of_a_model_are_downloaded(folder, monkeypatch):
    asked = {}

    def snapshot(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    for loaded in (load("user/model", revision="v1"), SequenceModel.from_pretrained("user/model", revision="v1")):
        assert torch.equal(output(loaded), output(make(CONFIGS["rdn"])))
    assert asked["repo_id"] == "user/model"
    assert asked["revision"] == "v1"
    assert asked["allow_patterns"] == ["model.safetensors", "config.json", "words.txt"]


def test_a_hub_id_that_cannot_be_had_is_one_line(monkeypatch, tmp_path):
    with pytest.raises(InvalidFile, match="no folder 'user/model' here, and no such model from the hub: ") as caught:
        load("user/model", local_files_only=True, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_push_to_hub_uploads_the_two_files_and_a_card(monkeypatch):
    uploaded = {}

    def upload(self, *, repo_id, folder_path, **_):
        uploaded.update({name: (folder_path / name).read_bytes() for name in os.listdir(folder_path)})
        return f"https://huggingface.co/{repo_id}"

    class Repo:
        repo_id = "user/model"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda self, **_: Repo())
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    make(CONFIGS["rdn"]).push_to_hub("user/model")
    assert set(uploaded) == {"README.md", "config.json", "model.safetensors"}
    assert json.loads(uploaded["config.json"])["rfwp"] == rfwp.__version__
    assert b"library_name: rfwp" in uploaded["README.md"]
    assert b'rfwp.load("user/model")' in uploaded["README.md"]


def test_without_the_extra_folders_work_and_hub_ids_name_it(folder):
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "huggingface_hub":
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
import rfwp
model = rfwp.load({str(folder)!r})
model.save_pretrained({str(folder)!r})
for call in (lambda: rfwp.load("user/model"), lambda: model.push_to_hub("user/model")):
    try:
        call()
    except rfwp.errors.MissingExtra as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "there is no folder 'user/model' here, and loading it from the hub needs: pip install \"rfwp[hub]\"",
        'push_to_hub needs: pip install "rfwp[hub]"',
    ]
    assert issubclass(MissingExtra, ImportError)


def test_versions_compare_by_number():
    assert pretrained._numbers("0.10.0") > pretrained._numbers("0.9.3")
    assert pretrained._numbers("0.2.0.dev1+g123") == pretrained._numbers("0.2.0")
