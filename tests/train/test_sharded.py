"""Sharded training with gloo on the CPU: the numbers of one process, and checkpoints for any number of processes."""

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rfwp import load as load_model
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.train import checkpoint, sharded
from rfwp.train.checkpoint import NoneWhole
from rfwp.train.distributed import World
from rfwp.train.optim import optimiser_tensors
from rfwp.train.sharded import checkpoint_blocks, load_sharded, save_sharded, shard, whole_weights
from rfwp.train.sharded_store import ShardedStore
from tests.contract import assert_same, leaves, some_resets
from tests.models.language_models import language_model, random_tokens
from tests.test_readme import python_blocks
from tests.train.sharded_run import AFTER, BEFORE, loop_config, losses, make
from tests.train.tiny import trainer, weights

PART = "shard-00001-model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two processes say, the folder of their checkpoints, and the losses of one process."""
    folder = tmp_path_factory.mktemp("sharded")
    model, optimiser, step = make(World())
    losses(step, World(), range(BEFORE))
    save_sharded(folder / "one" / "last", model, optimiser, {"step": BEFORE}, World(), {"rng": torch.arange(5)})
    one = losses(step, World(), range(BEFORE, BEFORE + AFTER))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = [*torchrun, "-m", "tests.train.sharded_run", str(folder)]
    done = subprocess.run(run, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    said = [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(2)]
    return said, folder, one


def test_sharded_steps_are_the_steps_of_one_process(two_processes):
    """Losses and weights after three clipped steps, for fast weights, attention and LSTM, checkpointed and compiled."""
    said, _, _ = two_processes
    for process in said:
        assert {name: difference for name, difference in process["differences"].items() if difference > 1e-11} == {}


def test_each_process_holds_half_of_weights_and_optimiser(two_processes):
    said, _, _ = two_processes
    total = sum(p.numel() for p in make(World())[0].parameters())
    for what in (0, 1):
        held = [process["held"][what] for process in said]
        assert sum(held) == total
        assert max(held) < 0.52 * total


def test_a_checkpoint_of_two_processes_goes_on_in_two(two_processes):
    said, _, one = two_processes
    for process in said:
        assert process["resumed"]["straight"] == process["resumed"]["from two"]
        assert process["resumed"]["straight"] == pytest.approx(one, abs=1e-11)


def test_a_checkpoint_of_two_processes_goes_on_in_one(two_processes):
    _, folder, one = two_processes
    model, optimiser, step = make(World())
    loaded = load_sharded(folder / "two" / "last", model, optimiser, World())
    assert loaded.state == {"step": BEFORE}
    assert loaded.tensors["rng"].tolist() == [0, 1, 2, 3, 4]
    assert losses(step, World(), range(BEFORE, BEFORE + AFTER)) == pytest.approx(one, abs=1e-11)


def test_a_checkpoint_of_one_process_goes_on_in_two(two_processes):
    said, _, one = two_processes
    for process in said:
        assert process["resumed"]["from one"] == pytest.approx(one, abs=1e-11)
        assert process["resumed"]["rng"] == [0, 1, 2, 3, 4]


def test_copies_of_the_whole_model_read_a_checkpoint_of_parts(two_processes):
    said, folder, _ = two_processes
    model, optimiser, _ = make(World())
    load_sharded(folder / "two" / "last", model, optimiser, World())
    total = sum(t.double().abs().sum().item() for t in model.state_dict().values())
    assert [process["resumed"]["copies"] for process in said] == [total, total]


def test_a_set_of_sequences_is_trained_in_parts_as_one_process_does(two_processes, tmp_path):
    said, folder, _ = two_processes
    expected = trainer(tmp_path, loop_config()).run()
    for process in said:
        assert process["loop"] == pytest.approx(expected.metrics)
    ours, wanted = (safetensors.torch.load(weights(run, "best")) for run in (folder / "loop", tmp_path))
    assert ours.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(ours[name], wanted[name], atol=1e-4, rtol=0)


def test_a_weight_of_one_process_that_is_no_number_stops_all_of_them(two_processes):
    said, folder, _ = two_processes
    for process in said:
        assert process["nan"].startswith("weights are not finite in epoch 1, step ")
    assert not (folder / "nan" / "last").exists()


def test_a_full_disk_in_one_process_is_an_error_in_all_and_the_earlier_checkpoint_stays(two_processes):
    said, folder, _ = two_processes
    for process in said:
        assert process["failed"] == {
            "message": f"cannot write {folder}/two/last: No space left on device; "
            f"earlier checkpoints in {folder}/two are as they were",
            "state": {"step": BEFORE},
            "files": ["last"],
        }


# --- Checkpoints of one process ---


def save_twice(run, **state):
    """`previous` is of step 1, `last` of step 2."""
    model, optimiser, step = make(World())
    for n in (1, 2):
        losses(step, World(), [n])
        optimiser.param_groups[0]["lr"] = 0.1 * n
        save_sharded(run / "last", model, optimiser, {"step": n} | state, World())
    return model, optimiser


def load(run, core="delta_rnn"):
    model, optimiser, _ = make(World(), core=core)
    said = []
    return load_sharded(run / "last", model, optimiser, World(), said.append), model, optimiser, said


def test_weights_optimiser_and_learning_rate_come_back(tmp_path):
    model, optimiser = save_twice(tmp_path)
    loaded, again, restored, said = load(tmp_path)
    assert (loaded.state, said) == ({"step": 2}, [])
    assert_same(whole_weights(again), whole_weights(model))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert_same(dict(restored.state[other]), dict(optimiser.state[one]))
    assert restored.param_groups[0]["lr"] == 0.2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "previous"]


def test_nothing_there_is_no_checkpoint(tmp_path):
    assert load(tmp_path)[0] is None


def cut_state(folder):
    (folder / "state.json").write_bytes((folder / "state.json").read_bytes()[:-30])


def change_state(folder):
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text.replace('"step": 2', '"step": 3'))


def cut_part(folder):
    path = folder / PART
    path.write_bytes(path.read_bytes()[:-1])


def change_part(folder):
    content = bytearray((folder / PART).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / PART).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut_state, "state.json was not written whole"),
        (change_state, "state.json does not have its checksum"),
        (cut_part, f"{PART} does not have its checksum"),
        (change_part, f"{PART} does not have its checksum"),
        (lambda folder: (folder / PART).unlink(), f"{PART} is missing"),
    ],
)
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(damage, why, tmp_path):
    save_twice(tmp_path)
    damage(tmp_path / "last")
    loaded, _, optimiser, said = load(tmp_path)
    assert loaded.state == {"step": 1}
    assert optimiser.param_groups[0]["lr"] == 0.1
    assert said == [f"{tmp_path}/last is damaged ({why}); using {tmp_path}/previous"]
    (tmp_path / "previous" / "state.json").unlink()
    with pytest.raises(InvalidFile, match=r"state.json is missing.* no other checkpoint is there; use another folder"):
        load(tmp_path)


@pytest.mark.parametrize("n", range(1, 5))
def test_a_process_that_dies_between_renames_leaves_a_whole_checkpoint(n, tmp_path, monkeypatch):
    """Whichever rename of the third checkpoint does not happen any more."""
    model, optimiser = save_twice(tmp_path)

    class Killed(BaseException):
        pass

    count, rename = 0, os.rename

    def counted(*paths):
        nonlocal count
        # other renames are not of whole checkpoints
        count += Path(paths[0]).name in ("previous", "last", ".last-new")
        if count == n:
            raise Killed
        rename(*paths)

    monkeypatch.setattr(os, "rename", counted)
    # a process that is killed cleans nothing up
    monkeypatch.setattr(sharded.shutil, "rmtree", lambda *_, **__: None)
    if n <= 3:
        with pytest.raises(Killed):
            save_sharded(tmp_path / "last", model, optimiser, {"step": 3}, World())
    else:
        save_sharded(tmp_path / "last", model, optimiser, {"step": 3}, World())
    monkeypatch.undo()
    assert load(tmp_path)[0].state == {"step": 2 if n <= 3 else 3}
    # and the next one is written over what was left
    save_sharded(tmp_path / "last", model, optimiser, {"step": 4}, World())
    assert load(tmp_path)[0].state == {"step": 4}
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_holds_no_pickle_and_one_beside_it_is_never_read(tmp_path):
    """PyTorch's own format has a pickle, `.metadata`, which can do anything to those who load it."""

    class Malicious:
        def __reduce__(self):
            return Path.touch, (tmp_path / "taken over",)

    save_twice(tmp_path)
    assert {path.suffix for path in (tmp_path / "last").iterdir()} == {".safetensors", ".json"}
    (tmp_path / "last" / ".metadata").write_bytes(pickle.dumps(Malicious()))
    assert load(tmp_path)[0].state == {"step": 2}
    assert not (tmp_path / "taken over").exists()


def test_a_part_that_is_a_pickle_is_one_line(tmp_path):
    """Also when the checksums were made to fit."""
    save_twice(tmp_path)
    part, state = tmp_path / "last" / PART, tmp_path / "last" / "state.json"
    part.write_bytes(pickle.dumps({"weights": [1.0] * 100}))
    content = json.loads(state.read_text())
    del content["sha256"]
    content["files"][PART] = sharded._digest(part)
    state.write_bytes(sharded.json_bytes({**content, "sha256": hashlib.sha256(sharded.json_bytes(content)).hexdigest()}))
    with pytest.raises(InvalidFile, match=r"cannot read .*last: .*header"):
        load(tmp_path)


def test_a_checkpoint_of_one_part_is_read_like_one_of_several(tmp_path):
    """As `rfwp.train.checkpoint` writes it, with all that a run adds."""
    model, optimiser, step = make(World())
    losses(step, World(), range(BEFORE))
    tensors = optimiser_tensors(model, optimiser) | {"rng.cpu.0": torch.arange(5)}
    whole = checkpoint.Checkpoint(model.state_dict(), tensors, {}, {"step": BEFORE, "lr": 0.3})
    checkpoint.save(whole, tmp_path, "last", "previous")
    loaded, again, restored, _ = load(tmp_path)
    assert loaded.state == {"step": BEFORE, "lr": 0.3}
    assert loaded.tensors.keys() == {"rng.cpu.0"}
    assert_same(whole_weights(again), whole_weights(model))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert_same(dict(restored.state[other]), dict(optimiser.state[one]))
    assert restored.param_groups[0]["lr"] == 0.3


def test_a_checkpoint_of_another_model_is_one_line(tmp_path):
    save_twice(tmp_path)
    with pytest.raises(InvalidFile) as caught:
        load(tmp_path, core="lstm")
    message = "last is of another model: core.blocks.0.ff.0.bias is (10,) there and nothing in the model"
    assert message in str(caught.value)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "run").touch()
    model, optimiser, _ = make(World())
    with pytest.raises(InvalidFile, match=r"cannot write .*run/last: Not a directory"):
        save_sharded(tmp_path / "run" / "last", model, optimiser, {}, World())


# --- Activation checkpointing ---


@pytest.mark.parametrize("core", ["delta_rnn", "rdn", "linear_transformer", "delta_mlp", "attention"])
def test_checkpointed_blocks_give_the_same_loss_state_and_gradients(core):
    """With dropout, resets and a state that comes in with gradients."""
    outcomes = []
    for on in (False, True):
        model = checkpoint_blocks(language_model(core), on)
        tokens = random_tokens(3, 9)
        torch.manual_seed(5)
        _, state = model.hidden(tokens, None, some_resets(3, 9))
        loss, state = model.loss(tokens, tokens.roll(1, 1), state, some_resets(3, 9))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        outcomes.append([loss, *leaves(state), *gradients])
    assert_same(outcomes[1], outcomes[0])


def test_checkpointed_blocks_keep_less():
    kept = []
    for on in (False, True):
        model, size = checkpoint_blocks(language_model("delta_rnn"), on), [0]

        def count(tensor, size=size):
            size[0] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model.loss(random_tokens(4, 64), random_tokens(4, 64))
        kept.append(size[0])
    assert kept[1] < kept[0] / 3


def test_without_gradients_blocks_run_once():
    model = checkpoint_blocks(language_model("rdn").eval())
    with torch.no_grad():
        y, _ = model(random_tokens(2, 5))
    assert torch.equal(y, checkpoint_blocks(model, on=False)(random_tokens(2, 5))[0])


def test_a_model_without_blocks_has_nothing_to_checkpoint():
    with pytest.raises(InvalidInput, match="the core is LSTMCore and has no blocks; leave it off"):
        checkpoint_blocks(language_model("lstm"))


def test_one_process_keeps_the_model_whole():
    model = language_model()
    assert shard(model, World()) is model
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())


def test_the_program_of_the_docs_trains_resumes_and_saves(tmp_path, monkeypatch):
    """In one process and with a small model."""
    (program,) = python_blocks("docs/many-machines.md")
    small = {"core.width": 8, "embedding": 8, "core.layers": 2, "core.ff": 8, "inputs": 50, "outputs": 50, "cutoffs": [20]}
    for pattern, text in ((r"SIZE = .*", f"SIZE = {small}"), ("64, 1000,", "4, STOP,"), ("% 100", "% 2"), ("257", "9")):
        program, count = re.subn(pattern, text, program)
        assert count == 1, pattern
    monkeypatch.chdir(tmp_path)
    for stop, begin in ((4, 0), (6, 4)):
        names = {"STOP": stop}
        exec(compile(program, "docs/many-machines.md", "exec"), names)
        found = names["found"]
        assert (found.state["step"] if found else 0) == begin
        assert names["n"] == stop - 1
    assert_same(load_model("runs/large/model").state_dict(), whole_weights(names["model"]))


@pytest.mark.parametrize("rank", [0, 1])
def test_all_processes_hear_that_the_best_checkpoint_is_damaged(tmp_path, monkeypatch, rank):
    """Otherwise the first one would go on alone, and the others wait for what it has read."""
    (tmp_path / "best").mkdir()
    (tmp_path / "best/state.json").write_text("{}")
    told = []

    def broadcast(said, **_):
        if rank:
            said[0] = (None, "best is damaged")
        told.append(said[0])

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    model = language_model()
    store = ShardedStore(tmp_path, model, torch.optim.Adam(model.parameters()), World(rank, 2), lambda line: None)
    with pytest.raises(NoneWhole, match="best is damaged"):
        store.best()
    assert len(told) == 1
