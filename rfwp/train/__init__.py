"""Training: one fast step of any model."""

from rfwp.train.step import TrainStep, bucket

__all__ = ["TrainStep", "bucket"]
