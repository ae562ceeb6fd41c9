"""Which compiled variant of a kernel a launch takes. The interpreter has none: a kernel that only says what it was asked."""

import pytest
import torch

from rfwp.ops.gpu import launch as launches
from rfwp.ops.gpu.launch import launch


class Kernel:
    """Like one of Triton's with arguments (x, n, strides, C)."""

    fn = staticmethod(lambda: None)
    arg_names = ("x", "n", "strides", "C")

    def __init__(self):
        self.asked, self.ran = [], []

    def __getitem__(self, grid):
        def choose(*arguments, **meta):
            self.asked.append((grid, arguments, meta))
            return Variant(self.ran, len(self.asked))

        return choose


class Variant:
    def __init__(self, ran, number):
        self.ran, self.number = ran, number

    def __getitem__(self, grid):
        return lambda *arguments: self.ran.append((self.number, grid, arguments))


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launches, "_variants", {})
    return Kernel()


def test_the_same_call_runs_the_variant_of_the_first_one(kernel):
    x, other = torch.zeros(4), torch.ones(4)
    launch(kernel, 7, x, 3, (4, 1), num_warps=2, C=16)
    launch(kernel, 9, other, 3, (4, 1), num_warps=2, C=16)
    assert kernel.asked == [((7,), (x, 3, (4, 1)), {"num_warps": 2, "C": 16})]
    # the new tensor and the new number of programs, and constants in the kernel's order without Triton's own options
    assert [(number, grid) for number, grid, _ in kernel.ran] == [(1, (9, 1, 1))]
    (_, _, (tensor, *rest)) = kernel.ran[0]
    assert tensor is other
    assert rest == [3, (4, 1), 16]


@pytest.mark.parametrize(
    ("what", "arguments", "meta"),
    [
        ("a length", (torch.zeros(4), 4, (4, 1)), {"num_warps": 2, "C": 16}),
        ("strides", (torch.zeros(4), 3, (8, 1)), {"num_warps": 2, "C": 16}),
        ("a constant", (torch.zeros(4), 3, (4, 1)), {"num_warps": 2, "C": 32}),
        ("the number of warps", (torch.zeros(4), 3, (4, 1)), {"num_warps": 4, "C": 16}),
        ("a dtype", (torch.zeros(4, dtype=torch.bfloat16), 3, (4, 1)), {"num_warps": 2, "C": 16}),
        ("an address that is no multiple of 16", (torch.zeros(5)[1:], 3, (4, 1)), {"num_warps": 2, "C": 16}),
    ],
)
def test_what_differs_asks_again(kernel, what, arguments, meta):
    launch(kernel, 7, torch.zeros(4), 3, (4, 1), num_warps=2, C=16)
    launch(kernel, 7, *arguments, **meta)
    assert len(kernel.asked) == 2, what
    assert kernel.ran == []


def test_another_kernel_asks_for_itself(kernel):
    another = Kernel()
    another.fn = lambda: None
    for each in (kernel, another):
        launch(each, 7, torch.zeros(4), 3, (4, 1), C=16)
    assert len(kernel.asked) == len(another.asked) == 1


def test_memory_of_variants_is_bounded(kernel, monkeypatch):
    monkeypatch.setattr(launches, "MOST", 3)
    for n in (1, 2, 3, 4, 4, 1):
        launch(kernel, 7, torch.zeros(4), n, (4, 1), C=16)
    # the fourth length found no room and took all of it; the first one was forgotten
    assert [arguments[1] for _, arguments, _ in kernel.asked] == [1, 2, 3, 4, 1]
    assert len(launches._variants) == 2
