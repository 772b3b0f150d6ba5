"""A model of a library's -> what it holds for other methods than its forward, so that no graph depends on it.

Hugging Face's models carry what `generate()` goes by, which programs change between calls. Where any code mentions it
that a class of the model brings along, beside the library's own for generation, it may be read, and is watched.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType

import torch

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.variables import mentions

_NAME = "generation_config"
_LIBRARY, _ITS_MODELS = "transformers.", "transformers.models."


def for_other_methods(roots: Iterable[object]) -> list[object]:
    """Those objects that the modules among these hold, and that their forward does not read."""
    modules = [each for root in roots for each in _modules(root)]
    held = [attributes(module).get(_NAME) for module in modules]
    found = [value for value in held if type(value).__module__.startswith(_LIBRARY)]
    if not found or any(map(_mentions_it, {type(module) for module in modules})):
        return []
    return found


def _modules(root: object) -> Iterator[torch.nn.Module]:
    return root.modules() if isinstance(root, torch.nn.Module) else iter(())


def _is_of_all_models(cls: type) -> bool:
    """Whether it is a base of torch's or that library's, whose `forward` and hooks do not read it."""
    name = f"{cls.__module__}."
    is_of_library = name.startswith(_LIBRARY) and not name.startswith(_ITS_MODELS)
    return is_of_library or name.startswith(("torch.", "builtins."))


def _mentions_it(kind: type) -> bool:
    """Whether code does that comes with a class, or with the file that it is in."""
    for cls in kind.__mro__:
        if _is_of_all_models(cls):
            continue
        beside = vars(sys.modules.get(cls.__module__, cls)).values()
        if any(_NAME in mentions(each) for each in _functions([*vars(cls).values(), *beside])):
            return True
    return False


def _functions(members: Iterable[object]) -> Iterator[FunctionType]:
    """With those that decorators put others around."""
    for member in members:
        parts = (member, getattr(member, "fget", None), getattr(member, "__func__", None))
        for part in parts:
            if isinstance(part, FunctionType):
                yield part
                if isinstance(inner := inspect.unwrap(part), FunctionType):
                    yield inner
