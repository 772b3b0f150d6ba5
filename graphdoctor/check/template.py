"""Write targets for models that do not describe their inputs: a guess, with the lines to fill in marked."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TEMPLATE_FILE = "graphdoctor_targets.py"
_MARK = "# FILL IN"
_HEAD = '''"""Targets for graphdoctor. Check each line that is marked FILL IN: it is a guess."""

import torch
'''
_IDS = ("input_ids", "ids", "tokens", "idx", "token_ids")
_MASKS = ("attention_mask", "mask", "padding_mask")
_TIMES = ("t", "timestep", "timesteps", "time")


class LoneModel(NamedTuple):
    """A model class without inputs: its file relative to the root, and its syntax."""

    file: str
    node: ast.ClassDef

    @property
    def function(self) -> str:
        return f"{Path(self.file).stem}_{self.node.name}".lower()


def lone_models(lone: Sequence[tuple[str, str]], *, root: Path) -> Iterator[LoneModel]:
    """Every model of these files; of several, those that no other class of the file builds."""
    for file, _ in lone:
        tree = ast.parse((root / file).read_bytes())
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        models = [node for node in classes if _method(node, "forward") is not None]
        used = {
            name
            for node in classes
            for call in ast.walk(node)
            if isinstance(call, ast.Call)
            and (name := _called(call)) in {one.name for one in models} - {node.name}
        }
        chosen = [node for node in models if node.name not in used] or models
        yield from (LoneModel(file, node) for node in chosen)


def template(models: Sequence[LoneModel]) -> str:
    """The text of the file: one function for each model, which returns the model and its inputs."""
    return _HEAD + "".join(f"\n\n{_function(model)}" for model in models)


def _function(model: LoneModel) -> str:
    module = ".".join(Path(model.file).with_suffix("").parts).removeprefix("src.")
    init, forward = _method(model.node, "__init__"), _method(model.node, "forward")
    assert forward is not None
    required = ", ".join(f"{name}=..." for name in _required(init)) if init is not None else ""
    names = list(_required(forward))
    mark = f"  {_MARK}: the arguments of {model.node.name}" if required else ""
    lines = [
        f"def {model.function}():",
        f"    from {module} import {model.node.name}",
        "",
        f"    model = {model.node.name}({required}).cuda().eval(){mark}",
        *(
            f"    {name} = {_guess(name, model.node)}  {_MARK}: a guess from forward({', '.join(names)})"
            for name in names
        ),
        f"    return model, ({''.join(f'{name}, ' for name in names).rstrip()})",
    ]
    return "\n".join(lines) + "\n"


def _required(function: ast.FunctionDef) -> Iterator[str]:
    """Parameters without a default, after `self`."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    without = arguments[: len(arguments) - len(function.args.defaults)]
    yield from (one.arg for one in without[1:])


def _guess(name: str, model: ast.ClassDef) -> str:
    layer, size = _first_layer(model)
    if name in _MASKS:
        return 'torch.ones(2, 128, dtype=torch.int64, device="cuda")'
    if name in _TIMES:
        return 'torch.randint(0, 1000, (2,), device="cuda")'
    if name in _IDS or layer == "Embedding":
        return (
            f'torch.randint(0, {size if layer == "Embedding" else 1000}, (2, 128), device="cuda")'
        )
    if layer == "Conv2d":
        return f'torch.randn(2, {size}, 224, 224, device="cuda")'
    if layer == "Conv1d":
        return f'torch.randn(2, {size}, 256, device="cuda")'
    return f'torch.randn(8, {size}, device="cuda")'


def _first_layer(model: ast.ClassDef) -> tuple[str, int]:
    """The first layer that the class builds with a number, and that number."""
    calls = [node for node in ast.walk(model) if isinstance(node, ast.Call) and node.args]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        size = call.args[0]
        is_layer = _called(call) in ("Embedding", "Conv2d", "Conv1d", "Linear")
        if is_layer and isinstance(size, ast.Constant) and isinstance(size.value, int):
            return _called(call), size.value
    return "", 64


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next(
        (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == name), None
    )


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
