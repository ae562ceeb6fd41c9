"""The paper's Sections 2 and 3, one step at a time: slow nets, update rules, fast nets and their composition."""

from rfwp.fwp.composition import Composition
from rfwp.fwp.scan import scan
from rfwp.fwp.types import FastMatrix, FastNet, Program, SlowNet, State
from rfwp.fwp.zoo import ZOO, composition

__all__ = ["ZOO", "Composition", "FastMatrix", "FastNet", "Program", "SlowNet", "State", "composition", "scan"]
