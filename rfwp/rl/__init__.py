"""Reinforcement learning: IMPALA, an actor-critic whose learner corrects for actions of an older policy with V-trace."""

from rfwp.rl.free import Free
from rfwp.rl.learner import Learner, train_lockstep
from rfwp.rl.loss import ImpalaLoss, impala_loss
from rfwp.rl.result import RLResult
from rfwp.rl.trainer import RLTrainer
from rfwp.rl.unroll import Actor, Unroll
from rfwp.rl.vtrace import VTrace, vtrace

__all__ = [
    "Actor",
    "Free",
    "ImpalaLoss",
    "Learner",
    "RLResult",
    "RLTrainer",
    "Unroll",
    "VTrace",
    "impala_loss",
    "train_lockstep",
    "vtrace",
]
