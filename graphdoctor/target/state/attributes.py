"""Read the attributes of an object without running any of its code; and what plain data is."""

from __future__ import annotations

import io
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import MemberDescriptorType
from typing import Any, TypeGuard

import torch

SCALARS = (bool, int, float, complex, str, bytes, type(None))
STREAMS = (io.BytesIO, io.StringIO)
# A list of more plain values than this is data rather than state: it is compared as a whole.
LONG = 256


def is_data(items: list[object] | tuple[object, ...] | deque[object]) -> bool:
    """Whether it holds so many plain values, and nothing else, that each is not state by itself."""
    return len(items) > LONG and all(isinstance(item, SCALARS) for item in items)


def is_array(value: object) -> TypeGuard[Any]:
    """Whether it is an array of NumPy's, which need not be there."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


# What the standard library has for holding values; its threads, files, loggers are left alone.
_PLAIN_STDLIB = frozenset(
    {
        "types",
        "argparse",
        "configparser",
        "collections",
        "dataclasses",
        "enum",
        "abc",
        "_thread",
    }
)
_TORCH_WITH_STATE = (
    "torch.nn.",
    "torch.optim.",
    "torch.amp.grad_scaler.",  # an autocast keeps the modes that it found, for its end
    "torch.cuda.amp.grad_scaler.",
    "torch.ao.",
    "torch.distributions.",
)
# Compilers, whose functions hold what they have compiled, and all that they know of types.
_COMPILERS = frozenset({"numba", "llvmlite", "triton"})
_GRAPHDOCTOR_WITH_STATE = ("graphdoctor.rules.", "graphdoctor.target.")
_KINDS = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


def attributes(value: object) -> dict[str, object]:
    """The instance's own `__dict__`, or an empty one; never runs a property or `__getattr__`."""
    # What is local to a thread has another one in each.
    kind = threading.local if isinstance(value, threading.local) else object
    try:
        found = kind.__getattribute__(value, "__dict__")
    except Exception:  # a `__dict__` property of the user's may raise anything
        return {}
    return found if isinstance(found, dict) else {}


def slots_of(value: object) -> Iterator[tuple[str, object]]:
    """The slots that are set, with their values."""
    for name, slot in slots(value).items():
        with suppress(AttributeError):
            yield name, slot.__get__(value)


def slots(value: object) -> Mapping[str, MemberDescriptorType]:
    """The slots that its class and the bases of that declare."""
    cls: Any = type(value)
    return _declared(cls)


@cache
def _declared(cls: type) -> Mapping[str, MemberDescriptorType]:
    found: dict[str, MemberDescriptorType] = {}
    for base in cls.__mro__:
        declared = base.__dict__.get("__slots__", ())
        for name in (declared,) if isinstance(declared, str) else tuple(declared):
            mangled = name
            if name.startswith("__") and not name.endswith("__"):
                mangled = f"_{base.__name__.lstrip('_')}{name}"
            descriptor = base.__dict__.get(mangled)
            if isinstance(descriptor, MemberDescriptorType):
                found.setdefault(mangled, descriptor)
    return found


def is_stateful(value: object) -> bool:
    """A module, optimizer, schedule or gradient scaler."""
    return is_stateful_type(type(value))


def is_stateful_type(cls: type) -> bool:
    """Whether such objects are modules, optimizers, schedules or gradient scalers."""
    return issubclass(cls, _KINDS) or cls.__name__ == "GradScaler"


def has_walkable_state(value: object) -> bool:
    """Whether an object's attributes are state of the step, not a library's inner workings."""
    return is_state_type(type(value))


def is_state_type(cls: type) -> bool:
    """Whether the attributes of such objects are state of the step."""
    module = getattr(cls, "__module__", None)
    if not isinstance(module, str) or issubclass(cls, random.Random):
        return False
    top = module.partition(".")[0]
    if top == "torch":
        return f"{module}.".startswith(_TORCH_WITH_STATE)
    if top == "graphdoctor":
        return f"{module}.".startswith(_GRAPHDOCTOR_WITH_STATE)
    if top in _COMPILERS:
        return False
    return top in _PLAIN_STDLIB or top == "__main__" or top not in sys.stdlib_module_names


def counts_for_itself(holder: object) -> bool:
    """Whether torch keeps numbers in it that are no state of the step's: how often an optimizer stepped.

    What lies in tensors and modules is there since somebody has put it there.
    """
    module = getattr(type(holder), "__module__", "")
    if not isinstance(module, str) or module.partition(".")[0] != "torch":
        return False
    is_wrapper = module.startswith(("torch.nn.parallel", "torch.distributed"))
    return is_wrapper or not isinstance(holder, (torch.Tensor, torch.nn.Module))
