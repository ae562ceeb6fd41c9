"""What becomes a CUDA graph may never look at a value: neither choosing actions nor an update, whatever the core."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rfwp.config import ImpalaConfig
from rfwp.layers import LSTM
from rfwp.rl import Actor, Learner
from rfwp.rl.inference import copy_state
from rfwp.rl.rows import RowActor, Store
from rfwp.rl.updates import Updates
from tests.rl.fake import CORES, Noise, make_agent

LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")


class Looked(TorchDispatchMode):
    """The ops that make the host wait for a value, or for a size that depends on one."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        if name.startswith(LOOKS) or by_mask:
            self.ops.append(str(func))
        return func(*args, **kwargs or {})


def make_actor(core, steps=6):
    agent = make_agent(CORES[core], Noise())
    for module in agent.modules():
        if isinstance(module, LSTM):
            module.recordable = True
    return Actor(agent, Noise(), steps, seed=1)


@pytest.mark.parametrize("core", CORES)
def test_choosing_actions_never_looks_at_a_value(core):
    inference = make_actor(core).inference
    with torch.no_grad(), Looked() as looked:
        copy_state(inference.state, inference._step())
    assert looked.ops == []


@pytest.mark.parametrize("core", CORES)
def test_filling_rows_never_looks_at_a_value(core):
    actor = RowActor(make_actor(core).agent, Noise(), 6)
    actor.write_to(Store(actor.example, 4))
    with torch.no_grad(), Looked() as looked:
        actor.inference._step()
        actor.inference._write()
    assert looked.ops == []


@pytest.mark.parametrize("core", CORES)
def test_an_update_never_looks_at_a_value(core):
    actor = make_actor(core)
    unroll = actor.collect()
    assert unroll.done[:, 1:].any(), "without resets inside the unroll this says little"
    updates = Updates(Learner(actor.agent, ImpalaConfig()), unroll)
    with Looked() as looked:
        for _ in range(2):
            updates.start()
            updates.running = False
    assert looked.ops == []


def test_the_fused_lstm_does_look():
    actor = make_actor("lstm")
    actor.agent.core.layer.recordable = False
    with torch.no_grad(), Looked() as looked:
        actor.inference._step()
    assert looked.ops
