"""Triton's kernels on the CPU, in its interpreter."""

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor, scope):
    """The interpreter keeps scalars as arrays of one element, which NumPy 2.4 no longer turns into an int by itself."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_index
