"""A kernel whose numbers are wrong is not timed."""

import torch
from torch import Tensor

from rfwp.bench.contenders import DTYPES, Contender, example, run_op
from rfwp.bench.options import Mode
from rfwp.bench.shapes import OpShape

LIMIT: dict[Mode, float] = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}
"""Largest relative error of outputs, final states and gradients against the float64 reference."""
LONG_LIMIT: dict[Mode, float] = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2}
"""The same at the length that is timed, where errors of thousands of steps add up."""
STEPS = 67
AFFORDABLE = {"cpu": 2**24, "cuda": 2**33}
"""Numbers in all the W_t of the timed shape up to which it is compared, too."""


def relative_error(found: Tensor, truth: Tensor) -> float:
    """‖found - truth‖ / ‖truth‖; infinite where anything is not a number."""
    if not torch.isfinite(found).all():
        return float("inf")
    truth = truth.double()
    return ((found.double() - truth).norm() / truth.norm().clamp(min=1e-12)).item()


def check_small(op: str, backend: str, d: int, mode: Mode, device: torch.device) -> float:
    """The worst error of y, the final state and every gradient over 67 steps, with a state and resets."""
    shape = OpShape(B=2, T=STEPS, H=3, d=d)
    inputs, state = example(op, shape, DTYPES[mode], device, seed=1)
    reset = torch.zeros(shape.B, shape.T, dtype=torch.bool, device=device)
    reset[0, STEPS // 2] = reset[1, 0] = True

    def outputs_and_gradients(leaves: list[Tensor], backend: str) -> list[Tensor]:
        n = len(inputs)
        outputs = run_op(op, backend, tuple(leaves[:n]), tuple(leaves[n:]), reset)
        generator = torch.Generator(device).manual_seed(2)
        arriving = [torch.randn(x.shape, generator=generator, device=device).to(DTYPES[mode]).to(x.dtype) for x in outputs]
        return [*outputs, *torch.autograd.grad(outputs, leaves, arriving)]

    found = outputs_and_gradients([x.detach().requires_grad_() for x in (*inputs, *state)], backend)
    truth = outputs_and_gradients([x.detach().double().requires_grad_() for x in (*inputs, *state)], "reference")
    return max(relative_error(a, b) for a, b in zip(found, truth, strict=True))


def check_peer(contender: Contender, d: int, mode: Mode, device: torch.device) -> float:
    """The same for a peer that computes one of our ops: y and every gradient, without state and resets."""
    inputs, _ = example(contender.op, OpShape(B=2, T=STEPS, H=3, d=d), DTYPES[mode], device, seed=1)

    def outputs_and_gradients(leaves: list[Tensor], ours: bool) -> list[Tensor]:
        y, *_ = run_op(contender.op, "reference", tuple(leaves)) if ours else contender.call(*leaves)
        dy = torch.randn(y.shape, generator=torch.Generator(device).manual_seed(2), device=device).to(DTYPES[mode]).to(y.dtype)
        return [y, *torch.autograd.grad(y, leaves, dy)]

    found = outputs_and_gradients([x.detach().contiguous().requires_grad_() for x in inputs], False)
    truth = outputs_and_gradients([x.detach().double().requires_grad_() for x in inputs], True)
    return max(relative_error(a, b) for a, b in zip(found, truth, strict=True))


def plain_output(op: str, leaves: tuple[Tensor, ...], shape: OpShape) -> Tensor | None:
    """y at the shape that is timed, by plain PyTorch in float64; None where that would take too long."""
    if shape.tokens * shape.H * shape.d**2 > AFFORDABLE[leaves[0].device.type] or shape.T > 4096:
        return None
    with torch.no_grad():
        return run_op(op, "plain", tuple(x.double() for x in leaves))[0]
