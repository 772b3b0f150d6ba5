"""Find the target that `file.py`, `file.py:name` or `package.module:name` describes, or that an object is."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import ModuleType

import torch

from graphdoctor.target.build import Origin, build
from graphdoctor.target.description import SHAPES, Description, describe, is_step_object
from graphdoctor.target.forms import FORMS, ONLY_MODULE, Source, call, init_inputs
from graphdoctor.target.inputs.requested import BatchArgument, InputSpec, parse_input
from graphdoctor.target.outline import Outline, outline
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import instantiate, is_user_file, needed_arguments, user_code
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Mode
from graphdoctor.values.spelling import meant
from graphdoctor.values.target_spec import is_file, split

OF_A_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


class Workspace:
    """The import settings under which one target's code runs, from opening to `close`.

    They stay for the target's whole life, since code may import lazily in its step. Modules that
    the target imported from its own folder go with it: another target's `helpers.py` is another.
    A project that is not installed is importable too, after all that is: the folder that the
    target's package lies in, the project's own, and `src` in it.
    """

    def __init__(self, folder: Path, argument: str) -> None:
        self._argv = sys.argv
        self._known = frozenset(sys.modules)
        before = frozenset(sys.path)
        others = [str(other) for other in _project_folders(folder) if str(other) not in before]
        self._added = [str(folder), *(other for other in others if other != str(folder))]
        self._own = [Path(one) for one in self._added if one not in before]
        sys.path[:] = [self._added[0], *sys.path, *self._added[1:]]
        sys.argv = [argument]

    def close(self) -> None:
        """Put sys.path, sys.argv and sys.modules back. Harmless when called again."""
        if self._argv is not sys.argv:
            sys.argv = self._argv
        for folder in self._added:
            if folder in sys.path:
                sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if name not in self._known and self._is_own(module):
                del sys.modules[name]
        self.close = lambda: None  # type: ignore[method-assign]

    def _is_own(self, module: ModuleType) -> bool:
        known = vars(module)  # a module that imports lazily may fail to, when it is asked
        file = known.get("__file__")
        if (
            isinstance(file, str)
            and is_user_file(file)
            and any(map(Path(file).is_relative_to, self._own))
        ):
            return True
        return bool(known.get("__graphdoctor_target__", False))


def run_file(path: Path) -> ModuleType:
    """Execute a file as a module named after it, but not "__main__".

    It is registered under its own name where that is free, because dataclasses, pickle and
    transformers look classes' modules up; else under a private one. A file of a package that
    imports from it by dots is imported as the package's module, which needs the package.
    """
    package = ""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):  # whoever runs it says why
        nodes = ast.walk(ast.parse(path.read_bytes()))
        if any(isinstance(node, ast.ImportFrom) and node.level for node in nodes):
            package = _package_of(path)
    if package:
        with user_code(f"importing {path.name}"):
            module = importlib.import_module(f"{package}.{path.stem}")
        if getattr(module, "__file__", None) and Path(module.__file__ or "").resolve() == path:
            module.__dict__["__graphdoctor_target__"] = True
            return module
    name = path.stem if path.stem not in sys.modules else f"{path.stem}@{path.parent}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__graphdoctor_target__"] = True
    sys.modules[name] = module
    with user_code(f"importing {path.name}"):
        spec.loader.exec_module(module)
    return module


def import_module(name: str) -> ModuleType:
    """Import `package.module` by its name. Raises UsageError where there is no such module."""
    with user_code(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, and one that it imports is not
            raise UsageError(
                f"there is no module {error.name} (looked in {Path.cwd()} and among what is installed for"
                f" {sys.executable})"
            ) from None


def _package_root(folder: Path) -> Path:
    """The folder that holds the outermost package around a folder; the folder itself without any."""
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _package_of(path: Path) -> str:
    """The package that a file is a module of; without `__init__.py` it is named after its folders."""
    root = _package_root(path.parent)
    if root == path.parent:
        root = [*_project_folders(root)][-1]
    parts = path.parent.relative_to(root).parts
    return ".".join(parts) if all(map(str.isidentifier, parts)) else ""


def _project_folders(folder: Path) -> Iterator[Path]:
    """Where a package of the same project may lie; a plain folder without a project has none."""
    yield _package_root(folder)
    for parent in (folder, *folder.parents):
        if any((parent / name).exists() for name in OF_A_PROJECT):
            yield parent
            if (parent / "src").is_dir():
                yield parent / "src"
            return


TEMPLATE = """\
def graphdoctor_target():
    model = MyModel().cuda().eval()  # FILL IN: import your model, and build it
    inputs = (torch.randn(8, 3, 224, 224, device="cuda"),)  # FILL IN: what forward() takes
    return model, inputs  # or, for training: return step, (data, label)"""


def resolve(
    spec: str, *, mode: Mode | None, inputs: tuple[str, ...], batch: int | None = None
) -> Target:
    """Find, run and read the target. Close it when done: until then its imports stay possible.

    `batch` is given to the file's functions that take a batch size; the target's `sized_by` names
    them. Raises UsageError for what cannot be carried out as asked, UserCodeError for failing user
    code.
    """
    where, name = split(spec)
    specs = tuple(parse_input(text) for text in inputs)
    found = Outline(frozenset(), (), has_star_import=False)  # of a module nothing is known yet
    path = Path(where).resolve() if is_file(where) else None
    if path is not None:
        found = outline(Path(where))
        _check(found, where, name, specs)
    workspace = Workspace(path.parent if path is not None else Path.cwd(), where)
    try:
        module = run_file(path) if path is not None else import_module(where)
        live = replace(found, names=frozenset(vars(module)), has_star_import=False)
        source = Source(module, live, mode, specs, BatchArgument(batch))
        description, entry = _describe(source, where, name)
        uses_functions = mode != "inference"
        stem = Path(where).stem if path is not None else where
        origin = Origin(
            name=stem if name is None else f"{stem}:{name}",
            file=where if path is not None else module.__file__ or "",
            entry=entry,
            train_step=_function(source, "train_step") if uses_functions else None,
            get_optimizer=_function(source, "get_optimizer") if uses_functions else None,
        )
        target = build(description, origin, mode=mode, close=workspace.close)
        return replace(target, sized_by=source.batch.taken_by)
    except BaseException:
        workspace.close()
        raise


def _check(found: Outline, where: str, name: str | None, specs: tuple[InputSpec, ...]) -> None:
    """Refuse, before anything runs, a file that cannot have what was asked for."""
    if name is not None:
        first = name.partition(".")[0]
        if not found.has(first):
            known = sorted(n for n in found.names if not n.startswith("_"))
            there = ", ".join(known) or "nothing"
            raise UsageError(f"{where} has no {first}; it has {there}{meant(first, known)}")
        return
    forms = [form for form in FORMS if form.matches(found)]
    if not forms:
        raise no_target(where)
    if forms == [ONLY_MODULE] and not specs:
        names = ", ".join(cls.name for cls in found.classes if cls.may_be_module)
        raise UsageError(
            f"{where} does not say what the inputs of {names} are: fill in the target that"
            f" `graphdoctor init {where}` writes, or add each input, such as --input 8x3x224x224:float32"
        )


def no_target(where: str) -> UsageError:
    """The error for a file without any target, with something to paste into it."""
    return UsageError(
        f"{where} describes no target: for a program that trains or serves use `graphdoctor run {where}`;"
        f" for a model, paste this into {where}\n\n{TEMPLATE}"
    )


def _describe(source: Source, where: str, name: str | None) -> tuple[Description, str]:
    if name is not None:
        description, entry = describe_named(source, name)
    else:
        form = next((each for each in FORMS if each.matches(source.outline)), None)
        if form is None:
            raise no_target(where)
        description, entry = form.describe(source), form.entry
    if source.specs:
        drawn = Inputs(tuple(spec.draw() for spec in source.specs))
        replaced = ("the inputs are those of --input",) if description.inputs is not None else ()
        notes = (*description.notes, *replaced)
        description = replace(description, inputs=drawn, notes=notes)
    return description, entry


def _function(source: Source, name: str) -> Callable[..., object] | None:
    found = getattr(source.module, name, None)
    return found if inspect.isfunction(found) else None


def describe_named(source: Source, name: str) -> tuple[Description, str]:
    """A module or its class, a function that returns a target, a step, or an object with parts."""
    value = source.batch.bound(_find(source, name), name)
    if isinstance(value, type):
        description, entry = _from_class(source, value, name), f"{name}()"
    elif inspect.isroutine(value) and not is_step_object(value):
        if needed_arguments(value):  # it is a step; without parameters it returns a target
            description, entry = Description(value), name
        else:
            description, entry = describe(call(value), what=f"{name}()"), f"{name}()"
    elif callable(value) and not isinstance(value, torch.nn.Module) and not is_step_object(value):
        description, entry = Description(value), name
    else:
        description, entry = describe(value, what=name), name
    if description.inputs is None and not source.specs:
        beside = [n for n in ("get_inputs", "get_example_inputs") if source.outline.has(n)]
        if beside:
            description = replace(description, inputs=source.called(beside[0]))
    return description, entry


def _find(source: Source, name: str) -> object:
    try:
        return reduce(getattr, name.split("."), source.module)
    except AttributeError:
        there = [one for one in vars(source.module) if not one.startswith("_")]
        raise UsageError(f"{source.module.__file__} has no {name}{meant(name, there)}") from None


def _from_class(source: Source, cls: type, name: str) -> Description:
    if issubclass(cls, torch.nn.Module):
        args, kwargs = init_inputs(source) if needed_arguments(cls) else ([], {})
        return Description(instantiate(cls, *args, **kwargs), is_ours=True)
    made = instantiate(cls)
    if not is_step_object(made):
        raise UsageError(
            f"{name} is a class of neither a module nor a step, but a target is {SHAPES}"
        )
    return describe(made, what=f"{name}()")


def from_object(obj: object, *args: object, mode: Mode | None = None, **kwargs: object) -> Target:
    """A module or step with its inputs, or a function that returns what a target may be.

    A function alone is called and gives the target; with inputs, it is the step itself.
    """
    inputs = Inputs(args, kwargs) if args or kwargs else None
    named = obj if inspect.isroutine(obj) or isinstance(obj, type) else type(obj)
    name = str(getattr(named, "__name__", type(obj).__name__))
    description, entry = _describe_object(obj, name, inputs)
    if inputs is not None:
        description = replace(description, inputs=inputs)
    try:
        file = inspect.getsourcefile(named) or ""
    except (TypeError, OSError):  # as in a notebook
        file = ""
    origin = Origin(name, file, entry)
    return build(description, origin, mode=mode, close=lambda: None)


def _describe_object(obj: object, name: str, inputs: Inputs | None) -> tuple[Description, str]:
    if isinstance(obj, torch.nn.Module):
        return Description(obj), "the given module"
    if isinstance(obj, type):
        made = instantiate(obj)
        is_ours = isinstance(made, torch.nn.Module)
        return replace(describe(made, what=f"{name}()"), is_ours=is_ours), f"{name}()"
    if isinstance(obj, (tuple, list)) or is_step_object(obj) or not callable(obj):
        return describe(obj, what=name), "the given object"
    if inputs is not None:
        return Description(obj), "the given step"
    return describe(call(obj), what=f"{name}()"), f"{name}()"
