"""The ops in plain PyTorch with hand-written gradients: what runs wherever no kernel does."""

from types import ModuleType

from rfwp.ops.plain import delta, delta_lstm, delta_rnn, recurrent_delta, sum

OPS: dict[str, ModuleType] = {
    "sum": sum,
    "delta": delta,
    "delta_rnn": delta_rnn,
    "delta_lstm": delta_lstm,
    "recurrent_delta": recurrent_delta,
}
