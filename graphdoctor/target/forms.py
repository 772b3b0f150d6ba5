"""The forms in which a file may describe its model, and how each is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from graphdoctor.target.description import Description, describe
from graphdoctor.target.inputs.fresh import Called, to_inputs
from graphdoctor.target.inputs.requested import BatchArgument, InputSpec
from graphdoctor.target.outline import Outline
from graphdoctor.target.user_code import instantiate, needed_arguments, user_code
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Mode


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was run: its module, its outline with the names it has now, what was asked."""

    module: ModuleType
    outline: Outline
    mode: Mode | None
    specs: tuple[InputSpec, ...]
    batch: BatchArgument = field(default_factory=BatchArgument)

    def get(self, name: str) -> Any:
        return self.batch.bound(getattr(self.module, name), name)

    def called(self, name: str) -> Called:
        """Inputs from a function of the file."""
        return Called(self.get(name), what=f"{name}()")


@dataclass(frozen=True, slots=True)
class Form:
    """`matches` decides by the outline alone, before the file runs; `describe` reads the file."""

    entry: str
    matches: Callable[[Outline], bool]
    describe: Callable[[Source], Description]


def call(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call a function of the user's that a form is made of."""
    with user_code(f"{getattr(function, '__name__', 'the target')}()"):
        return function(*args, **kwargs)


_TARGET_FUNCTION = "graphdoctor_target"


# It returns the target itself in any of its shapes.
_GRAPHDOCTOR_TARGET = Form(
    f"{_TARGET_FUNCTION}()",
    lambda outline: outline.has(_TARGET_FUNCTION),
    lambda source: describe(call(source.get(_TARGET_FUNCTION)), what=f"{_TARGET_FUNCTION}()"),
)


_GET_MODEL = Form(
    "get_model() + get_inputs()",
    lambda outline: outline.has("get_model", "get_inputs"),
    lambda source: replace(
        describe(call(source.get("get_model")), what="get_model()"),
        inputs=source.called("get_inputs"),
    ),
)


def _describe_model_class(source: Source) -> Description:
    """A class `Model` together with `get_inputs()`, and `get_init_inputs()` for its constructor."""
    args, kwargs = init_inputs(source)
    model = instantiate(source.get("Model"), *args, **kwargs)
    return Description(model, source.called("get_inputs"), is_ours=True)


def init_inputs(source: Source) -> tuple[list[object], dict[str, object]]:
    """Both published forms: a list of arguments, or `[[arguments], {named arguments}]`."""
    if not source.outline.has("get_init_inputs"):
        return [], {}
    given = call(source.get("get_init_inputs"))
    if isinstance(given, dict):
        return [], given
    if not isinstance(given, (list, tuple)):
        raise UsageError(
            f"get_init_inputs() returned an object of type {type(given).__name__}, but it must return "
            f"a list of the constructor's arguments, or [[arguments], {{named arguments}}]"
        )
    if len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
        return list(given[0]), given[1]
    return list(given), {}


_MODEL_CLASS = Form(
    "Model + get_inputs()",
    lambda outline: outline.has("Model", "get_inputs"),
    _describe_model_class,
)


def _matches_torchbench(outline: Outline) -> bool:
    model = next((cls for cls in outline.classes if cls.name == "Model"), None)
    if model is None:
        return False
    return "get_module" in model.methods or {"test", "device"} <= model.parameters


def _describe_torchbench(source: Source) -> Description:
    """torchbench's `Model(test=, device=, batch_size=...)`, whose `get_module()` gives both parts."""
    cls = source.get("Model")
    benchmark: Any = instantiate(cls, **_torchbench_arguments(cls, source))
    given = call(benchmark.get_module)
    if not isinstance(given, tuple) or len(given) != 2:
        raise UsageError("Model.get_module() must return a module and its example inputs")
    inputs = to_inputs(given[1], what="Model.get_module(), as its inputs,")
    return Description(given[0], inputs)


def _torchbench_arguments(cls: type, source: Source) -> dict[str, object]:
    """The suite's arguments, as far as this constructor takes them, with its default sizes."""
    wanted: dict[str, object] = {
        "test": "train" if source.mode == "training" else "eval",
        "device": "cuda",
        "batch_size": source.batch.size,
        "extra_args": [],
    }
    taken = inspect.signature(cls).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    if takes_any or "batch_size" in taken:
        source.batch.note("Model", "batch_size")
    return {name: value for name, value in wanted.items() if takes_any or name in taken}


_TORCHBENCH = Form("Model.get_module()", _matches_torchbench, _describe_torchbench)


_EAGER_MODEL_NAMES = ("get_eager_model", "get_example_inputs")


def _classes_with_eager_model(outline: Outline) -> list[str]:
    return [cls.name for cls in outline.classes if cls.methods.issuperset(_EAGER_MODEL_NAMES)]


def _describe_eager_model(source: Source) -> Description:
    """`get_eager_model()` + `get_example_inputs()`: functions, or methods of one class."""
    if source.outline.has(*_EAGER_MODEL_NAMES):
        holder: object = source.module
    else:
        holder = instantiate(source.get(_classes_with_eager_model(source.outline)[0]))
    model = call(getattr(holder, _EAGER_MODEL_NAMES[0]))
    if not callable(model):
        raise UsageError(
            f"{_EAGER_MODEL_NAMES[0]}() returned an object of type {type(model).__name__}, which is no module"
        )
    return Description(
        model, Called(getattr(holder, _EAGER_MODEL_NAMES[1]), what=f"{_EAGER_MODEL_NAMES[1]}()")
    )


_EAGER_MODEL = Form(
    "get_eager_model() + get_example_inputs()",
    lambda outline: (
        outline.has(*_EAGER_MODEL_NAMES) or len(_classes_with_eager_model(outline)) == 1
    ),
    _describe_eager_model,
)


def _describe_only_module(source: Source) -> Description:
    """The file's only nn.Module class without required arguments, with inputs from `--input`."""
    classes = [
        cls
        for cls in vars(source.module).values()
        if isinstance(cls, type)
        and issubclass(cls, torch.nn.Module)
        and cls.__module__ == source.module.__name__
    ]
    free = [cls for cls in classes if not needed_arguments(cls)]
    if not classes:
        raise UsageError(f"{source.module.__file__} defines no nn.Module and no target")
    if not free:
        cls = classes[0]
        raise UsageError(
            f"{cls.__name__} needs {', '.join(needed_arguments(cls))} for its constructor; "
            f"write a graphdoctor_target() that makes it"
        )
    if len(free) > 1:
        names = ", ".join(cls.__name__ for cls in free)
        raise UsageError(
            f"{source.module.__file__} has several modules ({names}); "
            f"name one, such as file.py:{free[0].__name__}"
        )
    return Description(instantiate(free[0]), is_ours=True)


ONLY_MODULE = Form(
    "the only nn.Module + --input",
    lambda outline: any(cls.may_be_module for cls in outline.classes),
    _describe_only_module,
)

# In the order in which they are tried.
FORMS: tuple[Form, ...] = (
    _GRAPHDOCTOR_TARGET,
    _GET_MODEL,
    _MODEL_CLASS,
    _TORCHBENCH,
    _EAGER_MODEL,
    ONLY_MODULE,
)
