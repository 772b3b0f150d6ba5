"""Draws without the check of a standard deviation that torch makes on the host.

`torch.normal(0, std)` and `Normal(mean, std).sample()` make the host wait. `randn_like()` and `rsample()` draw the same
numbers, and compute the same with them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from graphdoctor.source.trees import last_name
from graphdoctor.strategies.patch.source import At, Callee, Change, Place, source_of
from graphdoctor.strategies.patch.step_parts import Group, replaced

_NAMES = ("std", "noise_std")
_BINDS = (ast.Assign, ast.AugAssign)


def is_replaceable(call: ast.Call) -> bool:
    """Whether it is `torch.normal(0, std)` with a tensor, on one line."""
    if ast.unparse(call.func) != "torch.normal" or call.keywords or len(call.args) != 2:
        return False
    mean, std = call.args
    is_centered = isinstance(mean, ast.Constant) and mean.value == 0
    is_read = not any(isinstance(node, ast.Call) for node in ast.walk(std))
    is_tensor = is_read and not isinstance(std, ast.Constant)
    return is_centered and is_tensor and call.lineno == call.end_lineno


def with_unchecked_draws(group: Group, text: str) -> Group:
    """The group with `torch.randn_like(std) * std` for `torch.normal(0, std)`.

    Its results must need no gradients: `torch.normal` gives none to `std`. A standard deviation that is no variable
    gets a name that the file's text does not have.
    """
    names = [name for name in _NAMES if not re.search(rf"\b{name}\b", text)]
    places: list[Place] = []
    for own in (n for n in ast.walk(ast.parse(group.code)) if isinstance(n, _BINDS)):
        for call in (n for n in ast.walk(own.value) if isinstance(n, ast.Call)):
            if not is_replaceable(call):
                continue
            std = ast.unparse(call.args[1])
            if not isinstance(call.args[1], ast.Name):
                before = group.code.split("\n")[own.lineno - 1].encode()[: own.col_offset].decode()
                if not names or before.strip():
                    continue
                places.append((own.lineno, 0, 0, f"{before}{names[0]} = {std}\n"))
                std = names.pop(0)
            drawn = f"torch.randn_like({std}) * {std}"
            drawn = drawn if own.value is call else f"({drawn})"
            places.append((call.lineno, call.col_offset, call.end_col_offset or 0, drawn))
    return replaced(group, places)


def unchecked_samples(file: str, places: Iterable[tuple[str, int]]) -> Iterator[Change]:
    """For the functions with these lines: `dist.rsample().detach()` for `dist.sample()` of a normal distribution."""
    lines = {line for name, line in places if name == file}
    tree = ast.parse(source_of(file))
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        if lines.isdisjoint(range(function.lineno, (function.end_lineno or 0) + 1)):
            continue
        nodes = [*ast.walk(function)]
        normal = {
            ast.unparse(target)
            for node in nodes
            if isinstance(node, ast.Assign) and _is_normal(node.value)
            for target in node.targets
        }
        for call in (n for n in nodes if isinstance(n, ast.Call) and not (n.args or n.keywords)):
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "sample":
                continue
            holder = call.func.value
            if _is_normal(holder) or ast.unparse(holder) in normal:
                at = At.end_of(call, file)
                yield Callee(at, f"{ast.unparse(holder)}.rsample().detach")


def _is_normal(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) == "Normal"
