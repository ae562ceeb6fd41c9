"""Training: one fast step of any model, and whole runs that can be stopped anywhere and resumed to the bit."""

from rfwp.train.log import ConsoleLog, Log, Moment
from rfwp.train.loop import Trainer
from rfwp.train.result import Result
from rfwp.train.runner import Diverged, Options
from rfwp.train.speed import Speed
from rfwp.train.step import TrainStep, bucket

__all__ = ["ConsoleLog", "Diverged", "Log", "Moment", "Options", "Result", "Speed", "TrainStep", "Trainer", "bucket"]
