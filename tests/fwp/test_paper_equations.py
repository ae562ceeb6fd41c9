"""The layer against the paper's equations, written out here once more: one head and one row at a time, no shared code."""

import math

import pytest
import torch
import torch.nn.functional as F

from rfwp.fwp import ZOO
from rfwp.layers.fwp import FWP
from tests.tolerances import FLOAT64

WIDTH, HEADS, D, T = 10, 2, 5, 9


def elu(x):
    return torch.where(x > 0, x, torch.exp(x) - 1) + 1


def softmax(x):
    return torch.exp(x) / torch.exp(x).sum()


def elu_sum(x, eps=0.0):
    return elu(x) / (elu(x).sum() + eps)


def elu_sum_eps(x):
    return elu_sum(x, 1e-5)


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def delta(W, k, v, b):
    """Eq. 8"""
    return W + sigmoid(b) * torch.outer(v - W @ k, k)


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


def linear_transformer(us, layer, head):
    W = zeros(D, D)
    for u in us:
        q, k, v = u.split((D, D, D))
        W = W + torch.outer(v, elu(k))
        yield W @ elu(q)


def linear_transformer_normalised(us, layer, head):
    W, z = zeros(D, D), zeros(D)
    for u in us:
        q, k, v = u.split((D, D, D))
        W, z = W + torch.outer(v, elu(k)), z + elu(k)
        yield W @ elu(q) / (z @ elu(q) + 1e-5)


def delta_net(us, layer, head):
    W = zeros(D, D)
    for u in us:
        q, k, v, b = u.split((D, D, D, 1))
        W = delta(W, elu_sum(k), v, b)
        yield W @ elu_sum(q)


def delta_mlp(us, layer, head):
    W0, W1 = zeros(4 * D, D), zeros(D, 4 * D)
    for u in us:
        q, k0, v0, k1, v1, b0, b1 = u.split((D, D, 4 * D, 4 * D, D, 1, 1))
        W0, W1 = delta(W0, softmax(k0), v0, b0), delta(W1, softmax(k1), v1, b1)
        yield W1 @ softmax(W0 @ softmax(q))


def delta_mlp_residual(us, layer, head):
    A, B = zeros(4 * D, D), zeros(D, 4 * D)
    gain, bias = layer.fast["gain0"], layer.fast["bias0"]
    for u in us:
        q, ka, va, kb, vb, ba, bb = u.split((D, D, 4 * D, 4 * D, D, 1, 1))
        A, B = delta(A, elu_sum_eps(ka), va, ba), delta(B, elu_sum_eps(kb), vb, bb)
        normed = (q - q.mean()) / torch.sqrt(q.var(unbiased=False) + 1e-5) * gain + bias
        yield q + B @ elu_sum_eps(A @ elu_sum_eps(normed))


def delta_delta_net(us, layer, head):
    slow, fast = zeros(3 * D + 1, D), zeros(D, D)
    for u in us:
        q, k, v, b = u.split((D, D, 3 * D + 1, 1))
        slow = delta(slow, elu_sum_eps(k), v, b)
        q2, k2, v2, b2 = (slow @ elu_sum_eps(q)).split((D, D, D, 1))
        fast = delta(fast, elu_sum_eps(k2), v2, b2)
        yield fast @ elu_sum_eps(q2)


def delta_rnn(us, layer, head):
    W, R, y = zeros(D, D), zeros(D, D), zeros(D)
    for u in us:
        q, k, v, kr, vr, b, br = u.split((D, D, D, D, D, 1, 1))
        W, R = delta(W, elu_sum(k), v, b), delta(R, softmax(kr), vr, br)
        y = W @ elu_sum(q) + R @ softmax(y)
        yield y


def delta_rnn_a(us, layer, head):
    W, R, y = zeros(D, D), zeros(D, D), zeros(D)
    for u in us:
        q, k, v, kr, vr, b, br = u.split((D, D, D, D, D, 1, 1))
        W, R = delta(W, softmax(k), v, b), delta(R, softmax(kr), vr, br)
        y = softmax(W @ softmax(q) + R @ y)
        yield y


def fast_lstm(us, version):
    W, R, y, c = [zeros(D, D)] * 3, [zeros(D, D)] * 3, zeros(D), zeros(D)
    for u in us:
        gates, betas = u[: 15 * D].view(3, 5, D), u[15 * D :].view(3, 2)
        z, pre = [], []
        s = y if version == "A" else softmax(y)
        for g in range(3):
            q, k, v, kr, vr = gates[g]
            W[g], R[g] = delta(W[g], elu_sum(k), v, betas[g, 0]), delta(R[g], softmax(kr), vr, betas[g, 1])
            z.append(W[g] @ elu_sum(q))
            pre.append(z[g] + R[g] @ s)
        candidate = pre[0] if version == "D" else sigmoid(pre[0])
        f, o = sigmoid(pre[1]), sigmoid(pre[2])
        c = f * c + (1 - f) * candidate
        y = {"A": lambda c, o, z: softmax(o * c), "C": lambda c, o, z: o * c + z}.get(version, lambda c, o, z: o * c)(c, o, z[0])
        yield y


def rdn(us, layer, head):
    W, y = zeros(D, D), zeros(D)
    R = layer.slow.R[head]
    for u in us:
        q, k, v, b = (u + R @ torch.tanh(y)).split((D, D, D, 1))
        W = delta(W, softmax(k), v, b)
        y = W @ softmax(q)
        yield y


EQUATIONS = {f.__name__: f for f in (linear_transformer, linear_transformer_normalised, delta_net, delta_mlp, delta_mlp_residual)}
EQUATIONS |= {f.__name__: f for f in (delta_delta_net, delta_rnn, delta_rnn_a, rdn)}
EQUATIONS |= {"delta_lstm": lambda us, layer, head: fast_lstm(us, "D")}
EQUATIONS |= {f"delta_lstm_{v.lower()}": lambda us, layer, head, v=v: fast_lstm(us, v) for v in "ABC"}


def test_every_zoo_entry_has_its_equations_here():
    assert set(EQUATIONS) == set(ZOO)


@pytest.mark.parametrize("scale_output", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_layer_follows_the_printed_equations(name, scale_output):
    torch.manual_seed(0)
    layer = FWP(name, WIDTH, HEADS, scale_output=scale_output, dtype=torch.float64)
    x = 2 * torch.randn(2, T, WIDTH, dtype=torch.float64)
    outputs = layer.composition.outputs(D)
    expected = []
    for row in x:
        heads = []
        for h in range(HEADS):
            slow = layer.slow.W.weight[h * outputs : (h + 1) * outputs]
            heads.append(torch.stack(list(EQUATIONS[name]([slow @ x_t for x_t in row], layer, h))))
        y = torch.cat(heads, dim=-1) / (math.sqrt(D) if scale_output else 1)
        expected.append(F.linear(y, layer.out.weight))
    torch.testing.assert_close(layer(x)[0], torch.stack(expected), **FLOAT64)
