import torch

from rfwp.rl.meter import Meter, describe
from rfwp.train.distributed import World

RECORD = {"entropy": 1.0, "lag": 0.0, "lag_max": 0.0, "cut": 0.0, "lr": 0.0, "failures": 0}


def test_a_last_update_beyond_the_last_step_leaves_no_time():
    assert describe(RECORD | {"steps": 900, "steps_per_s": 10}, 1_000).startswith("900/1,000 steps, 10 s left, ")
    assert describe(RECORD | {"steps": 1_080, "steps_per_s": 10}, 1_000).startswith("1,080/1,000 steps, 0 s left, ")


class Twins(World):
    """Two processes with the same numbers."""

    def gather(self, tensor):
        return [tensor, tensor]


def test_losses_of_processes_are_added_and_the_rest_is_averaged():
    meter = Meter()
    for total in (2.0, 4.0):
        meter.add({"total": total, "entropy": 0.5, "lag": 1.0, "lag_max": total}, [])
    found = meter.record(Twins(0, 2, torch.device("cpu")))
    assert (found["total"], found["entropy"], found["lag"], found["lag_max"]) == (6.0, 0.5, 1.0, 4.0)
