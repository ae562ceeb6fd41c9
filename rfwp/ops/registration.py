"""How an op becomes known to PyTorch: to autograd, to torch.compile, and in eager mode by the shortest way."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rfwp.errors import InvalidInput
from rfwp.ops.state import transforming


def register(
    name: str,
    forward: Callable[..., Any],
    forward_shapes: Callable[..., Any],
    backward: Callable[..., Any],
    backward_shapes: Callable[..., Any],
    *,
    tensors: int,
    outputs: int,
    keeps_y: bool = False,
) -> Callable[..., Any]:
    """Join the two passes of an op, and get back the function to call.

        forward(*tensors, reset, keep, *options) -> (y, *state, *kept)
        backward(dy, *dstate, *tensors, reset, [y], *kept, *options) -> a gradient for each of the tensors

    `tensors` counts the first inputs, `outputs` is 1 + the size of the state; `*_shapes` give empty tensors while compiling.
    """
    forward_op = torch.library.custom_op(f"rfwp::{name}", forward, mutates_args=())
    backward_op = torch.library.custom_op(f"rfwp::{name}_backward", backward, mutates_args=())
    forward_op.register_fake(forward_shapes)
    backward_op.register_fake(backward_shapes)

    def save(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
        ctx.options = inputs[tensors + 2 :]
        ctx.save_for_backward(*inputs[: tensors + 1], *output[: int(keeps_y)], *output[outputs:])
        # zeros would be made for all that is kept, too; only some are needed, and made below
        ctx.set_materialize_grads(False)
        ctx.sizes = [(x.shape, x.dtype, x.device) for x in output[:outputs]]

    def gradient(run: Callable[..., Any], ctx: Any, *arriving: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = (
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(arriving, ctx.sizes, strict=False)
        )
        return *run(*grads, *ctx.saved_tensors, *ctx.options), *(None,) * (2 + len(ctx.options))

    forward_op.register_autograd(partial(gradient, backward_op), setup_context=save)
    backward_op.register_autograd(_refuse_second)

    class Eager(torch.autograd.Function):
        """The same without the dispatcher, which takes longer than the kernels on short sequences."""

        # without setup_context: that would bind the arguments to the signature at every call
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = forward(*inputs)
            # `keep`: without it no backward pass follows
            if inputs[tensors + 1]:
                save(ctx, inputs, output)
                ctx.mark_non_differentiable(*output[outputs:])
            return output

        @staticmethod
        def backward(ctx: Any, *arriving: Tensor | None) -> tuple[Tensor | None, ...]:
            # with create_graph=True PyTorch must see an op: it is the one that says that there are no second derivatives
            return gradient(backward_op if torch.is_grad_enabled() else backward, ctx, *arriving)

        jvp = staticmethod(_refuse_forward_mode)

    transformed = _for_transforms(forward, backward, save, gradient, outputs)

    def call(*inputs: Any) -> Any:
        """The op itself for the compiler and for tensors that stand for others, the short way for all others."""
        if torch.compiler.is_compiling() or not all(type(x) in (Tensor, nn.Parameter) for x in inputs[:tensors]):
            return forward_op(*inputs)
        return (transformed if transforming() else Eager).apply(*inputs)

    return call


def _for_transforms(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    save: Callable[..., None],
    gradient: Callable[..., Any],
    outputs: int,
) -> Any:
    """The same for torch.func (grad, vmap, ...), which wants a forward pass without ctx, and knows nothing of custom ops."""

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return tuple(backward(*inputs))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, dims: Sequence[int | None], *inputs: Any) -> Any:
            return _one_by_one(Backward.apply, info, dims, inputs)

        backward = staticmethod(_refuse_second)
        jvp = staticmethod(_refuse_forward_mode)

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return forward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            save(ctx, inputs, output)
            ctx.mark_non_differentiable(*output[outputs:])

        @staticmethod
        def backward(ctx: Any, *arriving: Tensor | None) -> Any:
            return gradient(Backward.apply, ctx, *arriving)

        @staticmethod
        def vmap(info: Any, dims: Sequence[int | None], *inputs: Any) -> Any:
            return _one_by_one(Forward.apply, info, dims, inputs)

        jvp = staticmethod(_refuse_forward_mode)

    return Forward


def _one_by_one(run: Callable[..., Any], info: Any, dims: Sequence[int | None], inputs: Sequence[Any]) -> tuple[Any, Any]:
    """torch.vmap: one call after another, since not all that goes into an op has a batch to be folded into."""
    rows = (tuple(x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True)) for i in range(info.batch_size))
    stacked = tuple(torch.stack(parts) for parts in zip(*(run(*row) for row in rows), strict=True))
    return stacked, (0,) * len(stacked)


def _refuse_second(ctx: Any, *arriving: Any) -> None:
    raise InvalidInput("the kernels of rfwp have no second derivatives; backend='reference' has them")


def _refuse_forward_mode(ctx: Any, *tangents: Any) -> None:
    raise InvalidInput("the kernels of rfwp have no forward-mode derivatives; backend='reference' has them")
