"""Save and restore state of the process: random generators, torch's switches, environment variables."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from graphdoctor.target.state.kinds.buffers import saved_random
from graphdoctor.target.state.switches import (
    ATTENTION,
    PRECISIONS,
    SWITCHES,
    read_precision,
    set_precision,
)

_Switch = tuple[str, Callable[[], Any], Callable[[Any], object]]


def _filters() -> tuple[object, tuple[object, ...]]:
    return warnings.filters, tuple(warnings.filters)


def _set_filters(saved: tuple[object, tuple[object, ...]]) -> None:
    held, filters = saved
    if warnings.filters is held:  # and not those of a block of `catch_warnings`
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


# What it is called, read, write. A switch that this torch does not know, or refuses to read, is left out.
_SWITCHES: tuple[_Switch, ...] = (
    ("grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    *(
        switch
        for kind in ("cpu", "cuda")
        for switch in (
            (
                f"autocast of {kind}",
                partial(torch.is_autocast_enabled, kind),
                partial(torch.set_autocast_enabled, kind),
            ),
            (
                f"autocast's dtype of {kind}",
                partial(torch.get_autocast_dtype, kind),
                partial(torch.set_autocast_dtype, kind),
            ),
        )
    ),
    ("autocast's cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (
        "deterministic algorithms",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    # Not those of attention: a proof runs steps under one of its kernels, and puts state back meanwhile.
    *(
        (switch.name, switch.read, switch.write)
        for switch in SWITCHES
        if switch.write is not None and switch.operators != ATTENTION
    ),
    ("anomaly detection", torch.is_anomaly_enabled, lambda on: torch.set_anomaly_enabled(on)),
    # After those that set them, too.
    *(
        (f"precision of {switch}", partial(read_precision, switch), partial(set_precision, switch))
        for switch in PRECISIONS
    ),
    ("the filters of warnings", _filters, _set_filters),  # imports add to them
    ("os.environ", lambda: dict(os.environ), _set_environment),
)


def process_values() -> dict[str, str]:
    """What the process's switches and environment are, by name."""
    found = {name: repr(value) for name, read, _ in _SWITCHES if (value := _read(read)) is not None}
    del found["os.environ"]
    return found | {f"os.environ.{name}": value for name, value in os.environ.items()}


class SavedGlobals:
    """Python's, NumPy's (if it was imported) and torch's generators, and torch's switches."""

    def __init__(self) -> None:
        self._switches = [
            (read, write, value)
            for _, read, write in _SWITCHES
            if (value := _read(read)) is not None
        ]
        self._generators = [saved_random(generator) for generator in _generators()]

    def restore(self) -> None:
        for read, write, value in self._switches:
            if _read(read) != value:
                write(value)
        for restore in self._generators:
            restore()


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (RuntimeError, AttributeError, OSError):  # newer torch refuses one set by its newer name
        return None


def _generators() -> Iterator[Any]:
    """The real ones, asked directly: an emulated device stands in for torch.cuda."""
    yield random.getstate.__self__  # type: ignore[attr-defined]
    if (numpys := numpy_generator()) is not None:
        yield numpys
    yield torch._C.default_generator
    yield from getattr(torch.cuda, "default_generators", ())


def numpy_generator() -> Any:
    """The one behind the functions of numpy.random; None where NumPy was not imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state.__self__
