"""The maths of `rfwp.fwp` over whole sequences: five ops, each with its reference beside it."""

from rfwp.ops.delta import delta
from rfwp.ops.delta_lstm import delta_lstm
from rfwp.ops.delta_rnn import delta_rnn
from rfwp.ops.recurrent_delta import recurrent_delta
from rfwp.ops.sum import sum

__all__ = ["delta", "delta_lstm", "delta_rnn", "recurrent_delta", "sum"]
