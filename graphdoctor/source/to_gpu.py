"""Finds the lines of a CPU program that have to move its modules and tensors to a GPU."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator

from graphdoctor.source.trees import MAKES_TENSOR, calls_in, last_name, tree_of
from graphdoctor.values.program import CalledModule, LineOnGpu

# They take `device`; what the others make is moved.
_TAKE_DEVICE = frozenset({
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones"),
    *("rand", "randint", "randn", "randperm", "tensor", "zeros"),
})  # fmt: skip
_MAKE_ON_CPU = MAKES_TENSOR - _TAKE_DEVICE
_MOVES = frozenset({"cpu", "cuda", "to"})
# What they are given moves with the module that has it.
_IN_MODULE = frozenset({"Parameter", "register_buffer"})


def lines_on_gpu(files: Iterable[str], modules: Iterable[CalledModule]) -> Iterator[LineOnGpu]:
    """Lines to change, and lines to add, in the order of each file."""
    added = {
        (one.file, one.line): f'{one.expression}.to("cuda")' for one in modules if one.expression
    }
    for file in dict.fromkeys((*files, *(file for file, _ in added))):
        tree = tree_of(file)
        lines = [
            LineOnGpu(file, n, code, is_added=True) for (at, n), code in added.items() if at == file
        ]
        if tree is not None:
            lines += [LineOnGpu(file, n, code) for n, code in _changed(file, tree).items()]
            lines += [LineOnGpu(file, n, code, is_added=True) for n, code in _batches(tree)]
        yield from sorted(lines, key=lambda line: (line.line, line.is_added))


def _changed(file: str, tree: ast.Module) -> dict[int, str]:
    """The lines with a tensor that is made on the CPU, or read back from it, as they become."""
    inserted: dict[int, list[tuple[int, str]]] = {}

    def insert(node: ast.expr, text: str, back: int) -> None:
        if node.end_lineno is not None and node.end_col_offset is not None:
            inserted.setdefault(node.end_lineno, []).append((node.end_col_offset - back, text))

    for made in _passed(tree):
        inserted.setdefault(made.lineno, []).append((made.col_offset, "lambda x: "))
        insert(made, '(x).to("cuda")', 0)
    for module in _called_at_once(tree):
        insert(module, '.to("cuda")', 0)
    for call in _outside_modules(tree):
        name = last_name(call.func)
        is_torch = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "torch"
        if is_torch and name in _TAKE_DEVICE:
            if all(keyword.arg != "device" for keyword in call.keywords):
                insert(
                    call, ', device="cuda"' if call.args or call.keywords else 'device="cuda"', 1
                )
        elif is_torch and name in _MAKE_ON_CPU:
            insert(call, '.to("cuda")', 0)
        elif name == "numpy" and isinstance(call.func, ast.Attribute) and not call.args:
            insert(call.func.value, ".cpu()", 0)
    changed = {}
    for number, parts in inserted.items():
        line = linecache.getline(file, number).rstrip("\n").encode()
        for column, text in sorted(parts, reverse=True):
            line = line[:column] + text.encode() + line[column:]
        changed[number] = line.decode(errors="replace").strip()
    return changed


def _passed(tree: ast.Module) -> Iterator[ast.Attribute]:
    """`torch.LongTensor` of `map(torch.LongTensor, batch)`."""
    for call in calls_in(tree):
        for each in call.args:
            if isinstance(each, ast.Attribute) and last_name(each) in _MAKE_ON_CPU:
                yield each


def _called_at_once(tree: ast.Module) -> Iterator[ast.Call]:
    """`nn.Linear(8, 8)` of `nn.Linear(8, 8)(x)`, which no model holds; a loss has nothing to move."""
    for call in calls_in(tree):
        made = call.func
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
            name, package = made.func.attr, ast.unparse(made.func.value)
            if package in ("nn", "torch.nn") and not name.endswith("Loss"):
                yield made


def _outside_modules(node: ast.AST) -> Iterator[ast.Call]:
    """The calls whose result is not moved already, and that no data set makes, which may run in other processes."""
    if isinstance(node, ast.ClassDef):
        methods = {getattr(each, "name", "") for each in node.body}
        if methods & {"__getitem__", "__iter__"}:
            return
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in _IN_MODULE:
            return
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in _MOVES and isinstance(inner, ast.Call):
            for part in (*inner.args, *node.args):
                yield from _outside_modules(part)
            return
        yield node
        if name in _TAKE_DEVICE | _MAKE_ON_CPU and ast.unparse(node.func).startswith("torch."):
            return
    for child in ast.iter_child_nodes(node):
        yield from _outside_modules(child)


def _batches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line of each loop over a DataLoader, and what moves the tensors of its batch."""
    loaders = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(last_name(call.func) == "DataLoader" for call in calls_in(node.value))
        for target in node.targets
    }
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For) or not loaders & {
            ast.unparse(each)
            for each in ast.walk(loop.iter)
            if isinstance(each, ast.Name | ast.Attribute)
        }:
            continue
        target = loop.target
        is_counted = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "enumerate"
        if is_counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target = target.elts[1]
        names = [
            ast.unparse(each)
            for each in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        moved = {ast.unparse(call.func) for call in calls_in(*loop.body)}
        if moved & {f"{name}.{move}" for name in names for move in ("to", "cuda")}:
            continue
        if all(name.isidentifier() for name in names):
            yield (
                loop.lineno,
                " = ".join((", ".join(names), ", ".join(f'{name}.to("cuda")' for name in names))),
            )
