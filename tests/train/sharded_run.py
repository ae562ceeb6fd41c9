"""`torchrun ... -m tests.train.sharded_run FOLDER`: what several processes do with one model, written to FOLDER/said-N.json.

FOLDER/one/last is a checkpoint that one process has written; they write FOLDER/two/last.
"""

import json
import sys
from pathlib import Path

import torch

from rfwp.errors import InvalidFile
from rfwp.train import Diverged, Speed, sharded
from rfwp.train.distributed import World, end_process, join, leave
from rfwp.train.sharded import checkpoint_blocks, load_sharded, save_sharded, shard, whole_weights
from rfwp.train.step import TrainStep
from tests.models.language_models import CORES, VOCABULARY, language_model
from tests.train.tiny import before_call, tiny_config, trainer

BEFORE, AFTER = 3, 3
CHECKED = ("delta_rnn", "rdn", "linear_transformer", "delta_lstm", "attention")
assert set(CHECKED) < set(CORES)


def share_of_loss(model, tokens, targets, total):
    """In float64 throughout."""
    return model.loss(tokens, targets)[0] * ((targets != -1).sum().double() / total)


def make(world, core="delta_rnn", adaptive=True, checkpoints=False, **options):
    """A model without dropout, its optimiser and its step; sharded where there are several processes."""
    torch.set_num_threads(1)
    model = language_model(core, adaptive)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if checkpoints:
        checkpoint_blocks(model)
    shard(model, world)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    return model, optimiser, TrainStep(model, optimiser, share_of_loss, clip=0.25, **options)


def losses(step, world, steps):
    """Of batches of four rows, of which every process has its part."""
    said = []
    for n in steps:
        tokens = torch.randint(0, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(n))
        targets = tokens.roll(-1, 1)
        # not all rows have as many targets
        targets[0, 5:] = -1
        rows = slice(world.rank * 4 // world.size, (world.rank + 1) * 4 // world.size)
        share = step(tokens[rows], targets[rows], (targets != -1).sum())
        said.append(world.sum(share.clone()).item())
    return said


def compare_with_one_process(world, **options):
    """The largest difference of losses and weights after three steps."""
    whole, _, step_whole = make(World(), **options)
    parted, _, step_parted = make(world, **options)
    pairs = zip(losses(step_parted, world, range(BEFORE)), losses(step_whole, World(), range(BEFORE)), strict=True)
    weights = whole_weights(parted)
    return max(
        *(abs(a - b) for a, b in pairs),
        *((weights[name] - tensor).abs().max().item() for name, tensor in whole.state_dict().items()),
    )


def write_and_resume(world, folder):
    """Train, save, go on; then a new model goes on from the checkpoint; then one from the checkpoint of one process."""
    model, optimiser, step = make(world)
    losses(step, world, range(BEFORE))
    save_sharded(folder / "two" / "last", model, optimiser, {"step": BEFORE}, world, {"rng": torch.arange(5)})
    said = {"straight": losses(step, world, range(BEFORE, BEFORE + AFTER))}
    for name in ("two", "one"):
        model, optimiser, step = make(world)
        loaded = load_sharded(folder / name / "last", model, optimiser, world)
        assert loaded is not None
        assert loaded.state == {"step": BEFORE}
        said[f"from {name}"] = losses(step, world, range(BEFORE, BEFORE + AFTER))
    said["rng"] = loaded.tensors["rng"].tolist()
    # and copies of the whole model read parts
    model, optimiser, _ = make(World())
    load_sharded(folder / "two" / "last", model, optimiser, world)
    said["copies"] = sum(t.double().abs().sum().item() for t in model.state_dict().values())
    return said


def fail_in_one_process(world, folder):
    """The disk of process 1 is full: everybody hears of it, and the checkpoint that was there stays."""
    model, optimiser, _ = make(world)
    digest = sharded._digest

    def full(path):
        raise OSError(28, "No space left on device")

    sharded._digest = full if world.rank == 1 else digest
    try:
        save_sharded(folder / "two" / "last", model, optimiser, {"step": 99}, world)
    except InvalidFile as error:
        message = str(error)
    sharded._digest = digest
    loaded = load_sharded(folder / "two" / "last", model, optimiser, world)
    return {"message": message, "state": loaded.state, "files": sorted(p.name for p in (folder / "two").iterdir())}


def train_in_parts(folder):
    """A set of sequences: 9 of them are validated in three batches, which two processes cannot share equally."""
    run = trainer(folder / "loop", loop_config(), speed=Speed(shard=True))
    return run.run().metrics


def loop_config(**train):
    return tiny_config("delta_rnn", dropout=0.0, **{"batch": 1, "accumulate": 1, "epochs": 2, **train})


def spoil_one_part(folder):
    """Process 1 has a weight that is no number when the checkpoint is due: everybody stops, and none is written."""
    run = trainer(folder / "nan", loop_config(batch=8, epochs=1), speed=Speed(shard=True), save_minutes=0)

    def spoil():
        if run.world.rank == 1:
            next(run.model.parameters()).detach().to_local().fill_(float("nan"))

    run.store.finite = before_call(1, run.store.finite, spoil)
    try:
        run.run()
    except Diverged as error:
        return str(error)


def evaluate_in_parts(world):
    """hidden, logits and nll, each called for itself, as evaluation does."""
    model, _, _ = make(world)
    whole, _, _ = make(World())
    tokens = torch.arange(24).view(2, 12) % VOCABULARY
    with torch.no_grad():
        hidden, _ = model.hidden(tokens)
        expected, _ = whole.hidden(tokens)
        pairs = [(hidden, expected), (model.logits(hidden), whole.logits(expected)), (model(tokens)[0], whole(tokens)[0])]
        pairs.append((model.nll(hidden, tokens), whole.nll(expected, tokens)))
    return max((a - b).abs().max().item() for a, b in pairs)


def first_moments(model, optimiser):
    return [optimiser.state[parameter]["exp_avg"] for parameter in model.parameters()]


def main():
    folder = Path(sys.argv[1])
    world = join(torch.device("cpu"))
    said = {"differences": {core: compare_with_one_process(world, core=core) for core in CHECKED}}
    said["differences"]["checkpointed"] = compare_with_one_process(world, core="rdn", checkpoints=True)
    said["differences"]["plain head"] = compare_with_one_process(world, core="delta_net", adaptive=False)
    said["differences"]["lstm"] = compare_with_one_process(world, core="lstm")
    said["differences"]["compiled"] = compare_with_one_process(world, core="rdn", compile="blocks", compiler="eager")
    said["differences"]["evaluation"] = evaluate_in_parts(world)
    model, optimiser, step = make(world)
    losses(step, world, range(1))
    said["held"] = [
        sum(t.to_local().numel() for t in tensors) for tensors in (model.parameters(), first_moments(model, optimiser))
    ]
    said["resumed"] = write_and_resume(world, folder)
    said["failed"] = fail_in_one_process(world, folder)
    said["loop"] = train_in_parts(folder)
    said["nan"] = spoil_one_part(folder)
    (folder / f"said-{world.rank}.json").write_text(json.dumps(said))
    leave()
    end_process(0, at_once=True)


if __name__ == "__main__":
    main()
