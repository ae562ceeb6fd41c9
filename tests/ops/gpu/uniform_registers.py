"""Uniform registers that machine code reads though some path has not written them: a fault of ptxas, which no kernel can see.

ptxas 12.8 builds descriptors of shared memory from such registers where one address serves tiles of two swizzles (docs/log.md).
"""

import re

WRITERS = ("U", "S2UR", "R2UR", "CS2UR")
"""Beginnings of instructions whose first operand is a uniform register that they write, if it is one."""

Instruction = tuple[int, bool, str, list[str]]
"""Address, whether it has a condition, name, operands."""


def unset(machine_code: str) -> list[str]:
    """Instructions that read a uniform register which some path to them has not written, in what cuobjdump -sass prints."""
    code = _instructions(machine_code)
    following = _following(code)
    used = [_registers(name, operands) for _, _, name, operands in code]
    # what is certainly written before each instruction; None: not reached yet
    before: list[set[int] | None] = [set(), *[None] * (len(code) - 1)]
    waiting = [0]
    while waiting:
        i = waiting.pop()
        after = (before[i] or set()) | used[i][1]
        for j in following[i]:
            known = before[j]
            certain = after if known is None else known & after
            if certain != known:
                before[j] = certain
                waiting.append(j)
    faults = [i for i, known in enumerate(before) if known is not None and used[i][0] - known]
    return [f"{code[i][0]:#x} {code[i][2]} {', '.join(code[i][3])}" for i in faults]


def _instructions(machine_code: str) -> list[Instruction]:
    found = []
    for address, condition, name, rest in re.findall(
        r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);", machine_code, re.MULTILINE
    ):
        found.append((int(address, 16), bool(condition), name, [part.strip() for part in rest.split(",")]))
    return found


def _following(code: list[Instruction]) -> list[list[int]]:
    """Which instructions may come next."""
    index = {address: i for i, (address, *_) in enumerate(code)}
    following = []
    for i, (_, condition, name, operands) in enumerate(code):
        to, through = [], True
        if name.startswith("BRA"):
            to = [index[int(operands[-1], 16)]]
            # a branch has its condition in front, or as a first operand
            through = condition or len(operands) > 1
        elif name == "EXIT":
            through = condition
        following.append(to + [i + 1] * (through and i + 1 < len(code)))
    return following


def _registers(name: str, operands: list[str]) -> tuple[set[int], set[int]]:
    """Uniform registers that an instruction reads, and those that it writes."""
    read: set[int] = set()
    written: set[int] = set()
    pair = 2 if ".64" in name or "WIDE" in name else 1
    for place, operand in enumerate(operands):
        for first in map(int, re.findall(r"\bUR(\d+)", operand)):
            if place == 0 and name.startswith(WRITERS) and "[" not in operand:
                written.update(range(first, first + (4 if ".128" in name else pair)))
            elif "gdesc[" in operand:
                # descriptors of a and b; where a is in registers, only the second is read
                read.update(range(first + 2 * operands[1].startswith("R"), first + 4))
            elif "desc[" in operand:
                read.update((first, first + 1))
            else:
                read.update(range(first, first + (2 if ".64" in name and name.startswith("U") else 1)))
    return read, written
