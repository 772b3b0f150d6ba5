"""Find the Python files that describe a model, without running any, and write targets for models that do not."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple, TypeGuard

from graphdoctor.check.settings.settings import TargetSettings, default_name
from graphdoctor.source.trees import last_name
from graphdoctor.target.forms import FORMS, ONLY_MODULE
from graphdoctor.target.outline import Outline, outline, top_level
from graphdoctor.target.resolve import OF_A_PROJECT, TEMPLATE
from graphdoctor.values.errors import GraphDoctorError, UserCodeError

_NO_SOURCES = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
_DESCRIBING = tuple(form for form in FORMS if form is not ONLY_MODULE)


class LoneFile(NamedTuple):
    """A file relative to the root, and the model classes in it."""

    file: str
    names: tuple[str, ...]


def discover(folder: Path, *, root: Path, exclude: Sequence[str] = ()) -> list[TargetSettings]:
    """A target for each file that describes one, by path; what cannot be parsed describes none."""
    found = []
    for path in python_files(folder, root=root, exclude=exclude):
        if any(form.matches(shape) for shape in _shape(path) for form in _DESCRIBING):
            entry = path.relative_to(root).as_posix()
            found.append(TargetSettings(default_name(entry), entry))
    return found


def lone_modules(folder: Path, *, root: Path) -> list[LoneFile]:
    """Files with models that do not describe their inputs, each with the names of the classes."""
    found = []
    for path in python_files(folder, root=root):
        for shape in _shape(path):
            names: list[str] = []
            for cls in shape.classes:
                has_forward = "forward" in cls.methods or {"Sequential", *names} & {*cls.bases}
                if has_forward and cls.may_be_module and "Function" not in cls.bases:
                    names.append(cls.name)
            if names and not any(form.matches(shape) for form in _DESCRIBING):
                found.append(LoneFile(path.relative_to(root).as_posix(), tuple(names)))
    return found


def python_files(folder: Path, *, root: Path, exclude: Sequence[str] = ()) -> Iterator[Path]:
    """In a fixed order; no hidden folders, no environments, nothing that a pattern excludes."""
    if folder.is_file():
        yield folder
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_source(Path(parent, name)))
        for name in sorted(files):
            path = Path(parent, name)
            relative = path.relative_to(root).as_posix()
            excluded = any(fnmatch(relative, pattern) for pattern in exclude)
            if name.endswith(".py") and not excluded:
                yield path


def _is_source(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _NO_SOURCES
    return not is_hidden and not (folder / "pyvenv.cfg").exists()


def _shape(path: Path) -> Iterator[Outline]:
    """Only names that are really there count: a star import may bring in anything."""
    try:
        yield replace(outline(path), has_star_import=False)
    except (GraphDoctorError, UserCodeError):
        return


TEMPLATE_FILE = "graphdoctor_targets.py"
_MARK = "# FILL IN"
_HEAD = '''"""Targets for graphdoctor. Check each line that is marked FILL IN: it is a guess."""

import torch
'''
_IDS = ("input_ids", "ids", "tokens", "idx", "token_ids", "text")
_MASKS = ("attention_mask", "mask", "padding_mask")
_TIMES = ("t", "timestep", "timesteps", "time")
_LABELS = ("labels", "label", "targets", "target", "y")
_IMAGES = ("img", "imgs", "image", "images", "pixel_values")
_NOISE = ("z", "noise", "latent", "latents")
_LAYERS = {"Embedding": 1000, "Conv2d": 3, "Conv1d": 64, "Linear": 64, "Conv3d": 3}
_NUMBERS = {"int": "1", "float": "1.0", "bool": "False"}
_CONFIGS = ("Config", "Args", "Arguments", "Configuration")

_Function = ast.FunctionDef | None


class LoneModel(NamedTuple):
    """A model class without inputs: where it is, what its file defines, and its target's name."""

    module: str
    node: ast.ClassDef
    tree: ast.Module
    function: str

    @property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {
            node.name: node for node in top_level(self.tree.body) if isinstance(node, ast.ClassDef)
        }

    def method(self, name: str) -> _Function:
        """A method of the class, or of the first of its bases in the file that has it."""
        node: ast.ClassDef | None = self.node
        seen = set[str]()
        while node is not None and node.name not in seen:
            seen.add(node.name)
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == name:
                    return part
            bases = (self.classes.get(_name(base)) for base in node.bases)
            node = next((base for base in bases if base is not None), None)
        return None


def lone_models(lone: Sequence[LoneFile], *, root: Path) -> Iterator[LoneModel]:
    """Every model of these files; of several, those that nothing else in the file is built with."""
    taken = set[str]()
    for file, names in lone:
        tree = ast.parse((root / file).read_bytes())
        nodes = [
            node
            for node in top_level(tree.body)
            if isinstance(node, ast.ClassDef) and node.name in names
        ]
        parts = _parts(tree, names)
        path = Path(file).with_suffix("")
        parents = path.parent.parts if path.name == "__init__" else path.parts
        for node in [node for node in nodes if node.name not in parts] or nodes:
            for depth in range(1, len(parents) + 1):
                words = "_".join((*parents[-depth:], node.name))
                function = re.sub(r"\W", "_", words).lower().lstrip("_0123456789")
                if function not in taken:
                    break
            if function in taken or not parents:
                function = f"target_{len(taken) + 1}"
            taken.add(function)
            module = ".".join((*_packages(root), *parents))
            if any((root / name).exists() for name in OF_A_PROJECT):
                module = module.removeprefix("src.")
            yield LoneModel(module, node, tree, function)


def _packages(root: Path) -> tuple[str, ...]:
    """The packages that contain the root itself."""
    if not (root / "__init__.py").exists():
        return ()
    return (*_packages(root.parent), root.name)


def _parts(tree: ast.Module, names: Sequence[str]) -> set[str]:
    """Classes that another class names in its body, or that a function passes to a call."""
    found = set[str]()
    for node in top_level(tree.body):
        if isinstance(node, ast.ClassDef):
            inside = (each for part in node.body for each in ast.walk(part))
            found |= {_name(each) for each in inside if isinstance(each, ast.Name)} - {node.name}
        elif isinstance(node, ast.FunctionDef):
            for call in ast.walk(node):
                if isinstance(call, ast.Call):
                    given = [*call.args, *(keyword.value for keyword in call.keywords)]
                    found |= {_name(each) for each in given}
    return found & set(names)


def template(models: Sequence[LoneModel]) -> str:
    """The text of the file: a function for each model, which returns it and its inputs; without models, a blank one."""
    if not models:
        return f"{_HEAD}\n\n{TEMPLATE}\n"
    return _HEAD + "".join(f"\n\n{_function(model)}" for model in models)


def _function(model: LoneModel) -> str:
    name, forward = model.node.name, model.method("forward")
    imported, made, mark = _made(model)
    parameters = _inputs(forward)
    signature = ", ".join(parameter.arg for parameter in parameters)
    lines = [
        f"def {model.function}():",
        *_import(model, imported),
        "",
        f"    model = {made}.cuda().eval()" + (mark and f"  {_MARK}: {mark}"),
        *(
            f"    {one.arg} = {_guess(one, model)}  {_MARK}: a guess from forward({signature})"
            for one in parameters
        ),
        f"    return model, ({signature}{',' if len(parameters) == 1 else ''})"
        + ("" if parameters else f"  {_MARK}: the inputs of {name}"),
    ]
    return "\n".join(lines) + "\n"


def _import(model: LoneModel, names: Sequence[str]) -> Iterator[str]:
    """Also of files whose path is no module's name."""
    note = ""
    if any(_trains(node) for node in model.tree.body):
        note = f"  {_MARK}: this import trains; move the class to another file"
    words = model.module.split(".")
    if all(word.isidentifier() and not iskeyword(word) for word in words):
        yield f"    from {model.module} import {', '.join(names)}{note}"
        return
    yield "    from importlib import import_module"
    yield ""
    yield f'    module = import_module("{model.module}"){note}'
    yield from (f"    {name} = module.{name}" for name in names)


def _trains(node: ast.stmt) -> bool:
    return isinstance(node, ast.For | ast.While) and any(
        isinstance(each, ast.Attribute) and each.attr == "backward" for each in ast.walk(node)
    )


def _made(model: LoneModel) -> tuple[list[str], str, str]:
    """Names to import, a call that makes the model, and what there is to fill in."""
    name, init = model.node.name, model.method("__init__")
    required = _required(init)
    if not required:
        return [name], f"{name}()", ""
    for function in top_level(model.tree.body):
        if isinstance(function, ast.FunctionDef) and not _required(function, skipped=0):
            returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
            if _name(function.returns) == name or any(
                isinstance(value, ast.Call) and _name(value.func) == name for value in returned
            ):
                return [function.name], f"{function.name}()", "a guess, one of several sizes"
    configs = {parameter.arg: _config(parameter, model) for parameter in required}
    imported = sorted({name, *configs.values()} - {""})
    given = ", ".join(
        f"{argument}={config}({_fields(config, model)})" if config else f"{argument}=..."
        for argument, config in configs.items()
    )
    guessed = "" if "..." in given else "a guess of "
    return imported, f"{name}({given})", f"{guessed}the arguments of {name}, best with few layers"


def _config(parameter: ast.arg, model: LoneModel) -> str:
    """The class of a parameter that holds settings: the one it is declared as, or the nearest."""
    bound = [*model.classes]
    for node in top_level(model.tree.body):
        if isinstance(node, ast.ImportFrom):
            bound += [alias.asname or alias.name for alias in node.names]
    declared = _name(parameter.annotation)
    configs = [name for name in bound if name.endswith(_CONFIGS) and name not in _BASE_CONFIGS]
    if declared in configs or declared in model.classes:
        return declared
    if parameter.arg not in ("config", "cfg", "conf", "args", "params", "hparams"):
        return ""
    stems = {name: re.sub(f"({'|'.join(_CONFIGS)})$", "", name) for name in configs}
    near = [name for name, stem in stems.items() if stem and model.node.name.startswith(stem)]
    return max(near, key=len, default=configs[0] if len(configs) == 1 else "")


_BASE_CONFIGS = ("PreTrainedConfig", "PretrainedConfig")


def _fields(name: str, model: LoneModel) -> str:
    """What a settings class requires; for transformers' own classes, a small number of layers."""
    config = model.classes.get(name)
    if config is None:
        modules = (node.module or "" for node in model.tree.body if _imports(node, name))
        is_theirs = any(
            module.rpartition(".")[2].startswith("configuration_") for module in modules
        )
        return "num_hidden_layers=2" if is_theirs else ""
    for part in config.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return ", ".join(f"{one.arg}=..." for one in _required(part))
    if not config.decorator_list:
        return ""
    return ", ".join(
        f"{_name(part.target)}=..."
        for part in config.body
        if isinstance(part, ast.AnnAssign) and part.value is None
    )


def _imports(node: ast.stmt, name: str) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}


def _required(function: _Function, skipped: int = 1) -> list[ast.arg]:
    """Parameters without a default, after `self`."""
    if function is None:
        return []
    given = function.args
    arguments = [*given.posonlyargs, *given.args]
    without = arguments[: len(arguments) - len(given.defaults)][skipped:]
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return [*without, *(one for one, default in pairs if default is None)]


def _inputs(forward: _Function) -> list[ast.arg]:
    """What `forward` requires, or the first that it takes."""
    if forward is None:
        return [ast.arg("input")]  # nn.Sequential
    arguments = [*forward.args.posonlyargs, *forward.args.args]
    required = [one for one in _required(forward) if one in arguments]
    return required or arguments[1:2]


def _guess(parameter: ast.arg, model: LoneModel) -> str:
    name, declared = parameter.arg, _name(parameter.annotation)
    layer, size = _first_layer(model)
    if declared in _NUMBERS:
        return _NUMBERS[declared]
    if name in _MASKS:
        return 'torch.ones(2, 128, dtype=torch.int64, device="cuda")'
    if name in _NOISE and layer == "Embedding":
        return 'torch.randn(2, 100, device="cuda")'
    if name in _TIMES:
        return 'torch.randint(0, 1000, (2,), device="cuda")'
    if name in _LABELS:
        batch = 8 if layer in ("", "Linear") else 2
        return f'torch.randint(0, 10, ({batch},), device="cuda")'
    if name in _IMAGES and layer != "Conv2d":
        layer, size = "Conv2d", _defaults(model.method("__init__")).get("in_chans", 3)
    if name in _IDS or layer == "Embedding":
        return (
            f'torch.randint(0, {size if layer == "Embedding" else 1000}, (2, 128), device="cuda")'
        )
    if layer == "Conv2d":
        sizes = _defaults(model.method("__init__"))
        side = sizes.get("img_size", sizes.get("image_size", 28 if size == 1 else 224))
        return f'torch.randn(2, {size}, {side}, {side}, device="cuda")'
    if layer == "Conv1d":
        return f'torch.randn(2, {size}, 256, device="cuda")'
    if layer == "Conv3d":
        return f'torch.randn(2, {size}, 16, 112, 112, device="cuda")'
    return f'torch.randn(8, {size}, device="cuda")'


def _first_layer(model: LoneModel, seen: frozenset[str] = frozenset()) -> tuple[str, int]:
    """The first layer that the class builds, also in another class of the file, and its size."""
    init, classes = model.method("__init__"), model.classes
    seen |= {model.node.name}
    calls = [node for node in ast.walk(init) if isinstance(node, ast.Call)] if init else []
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        name = _name(call.func)
        if name in _LAYERS:
            keywords = [
                one.value
                for one in call.keywords
                if one.arg in ("in_features", "in_channels", "num_embeddings")
            ]
            size = next(iter([*call.args[:1], *keywords]), None)
            if isinstance(size, ast.Constant) and isinstance(size.value, int):
                return name, size.value
            return name, _defaults(init).get(_name(size), _LAYERS[name])
        if name in classes and name not in seen:
            found = _first_layer(model._replace(node=classes[name]), seen)
            if found[0]:
                return found
    for base in map(_name, model.node.bases):
        if base in classes and base not in seen:
            return _first_layer(model._replace(node=classes[base]), seen)
    return "", 64


def _defaults(function: _Function) -> dict[str, int]:
    """The parameters whose default is a whole number."""
    if function is None or not function.args.defaults:
        return {}
    arguments = [*function.args.posonlyargs, *function.args.args]
    pairs = zip(arguments[-len(function.args.defaults) :], function.args.defaults, strict=True)
    return {
        one.arg: default.value
        for one, default in pairs
        if isinstance(default, ast.Constant) and type(default.value) is int
    }


def _name(node: ast.expr | None) -> str:
    """The last part of a name, also of one in quotes; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return last_name(node) if node is not None else ""
