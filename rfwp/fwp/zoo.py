"""Every model of the paper's Table 1 and of its ablations, one line each."""

from rfwp.errors import InvalidInput, UnknownName, unknown
from rfwp.fwp.composition import Composition, canonical
from rfwp.fwp.fast import (
    FAST,
    LSTM,
    MLP,
    RNN,
    DeltaNet,
    Linear,
    LSTMVersionA,
    LSTMVersionB,
    LSTMVersionC,
    NormalisedLinear,
    ResidualMLP,
    RNNVersionA,
)
from rfwp.fwp.maps import elu, elu_sum, elu_sum_eps, softmax
from rfwp.fwp.rules import Delta, Sum
from rfwp.fwp.slow import Feedforward, Recurrent

ZOO: dict[str, Composition] = {
    "linear_transformer": Composition(Feedforward(), Sum(), Linear(), elu),
    "linear_transformer_normalised": Composition(Feedforward(), Sum(), NormalisedLinear(), elu),
    "delta_net": Composition(Feedforward(), Delta(), Linear(), elu_sum),
    "delta_mlp": Composition(Feedforward(), Delta(), MLP(), softmax),
    "delta_mlp_residual": Composition(Feedforward(), Delta(), ResidualMLP(), elu_sum_eps),
    "delta_delta_net": Composition(Feedforward(), Delta(), DeltaNet(), elu_sum_eps),
    "delta_rnn": Composition(Feedforward(), Delta(), RNN(), elu_sum),
    "delta_rnn_a": Composition(Feedforward(), Delta(), RNNVersionA(), softmax),
    "delta_lstm": Composition(Feedforward(), Delta(), LSTM(), elu_sum),
    "delta_lstm_a": Composition(Feedforward(), Delta(), LSTMVersionA(), elu_sum),
    "delta_lstm_b": Composition(Feedforward(), Delta(), LSTMVersionB(), elu_sum),
    "delta_lstm_c": Composition(Feedforward(), Delta(), LSTMVersionC(), elu_sum),
    "rdn": Composition(Recurrent(), Delta(), Linear(), softmax),
}


def composition(name_or_composition: str | Composition) -> Composition:
    """A composition of the zoo by name; a composition passes through."""
    if isinstance(name_or_composition, Composition):
        return name_or_composition
    if not isinstance(name_or_composition, str):
        raise InvalidInput(f"a model is a name or a rfwp.Composition, saw {name_or_composition!r}; names: {', '.join(ZOO)}")
    if canonical(name_or_composition) not in ZOO:
        if canonical(name_or_composition) in FAST:
            example = f'rfwp.Composition(fast="{canonical(name_or_composition)}")'
            raise UnknownName(f"'{name_or_composition}' is a fast net and no model; make one of it with {example}")
        raise unknown("model", name_or_composition, ZOO)
    return ZOO[canonical(name_or_composition)]
