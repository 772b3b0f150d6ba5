"""The process -> its random generators, torch's switches and what imports change, saved to be put back."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from graphdoctor.target.state.precision import (
    PRECISIONS,
    has_precisions,
    read_precision,
    set_precision,
)

Switch = tuple[Callable[[], Any], Callable[[Any], None]]


def _by_name(name: str) -> Switch:
    """A switch below the public one, which newer torch refuses to read in some settings."""
    return (
        lambda: getattr(torch._C, f"_get_{name}")(),
        lambda value: getattr(torch._C, f"_set_{name}")(value),
    )


# Read, write. A switch that this torch does not know, or refuses to read, is left out.
_SWITCHES: tuple[Switch, ...] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    (lambda: torch.get_autocast_dtype("cpu"), lambda to: torch.set_autocast_dtype("cpu", to)),
    (lambda: torch.get_autocast_dtype("cuda"), lambda to: torch.set_autocast_dtype("cuda", to)),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    _by_name("cudnn_benchmark"),
    _by_name("cudnn_deterministic"),
    _by_name("cudnn_enabled"),
    _by_name("cudnn_allow_tf32"),
    _by_name("cublas_allow_tf32"),
    _by_name("float32_matmul_precision"),
    (torch.is_anomaly_enabled, lambda on: torch.set_anomaly_enabled(on)),
    # After those that set them, too.
    *(
        (partial(read_precision, switch), partial(set_precision, switch))
        for switch in (PRECISIONS if has_precisions() else ())
    ),
)


class SavedGlobals:
    """Python's, NumPy's (if it was imported) and torch's generators, and torch's switches."""

    def __init__(self) -> None:
        self._switches = [
            (read, write, value) for read, write in _SWITCHES if (value := _read(read)) is not None
        ]
        self._python = random.getstate()
        self._numpy = _numpy_random().get_state() if "numpy" in sys.modules else None
        self._torch = [(g, g.get_state()) for g in _torch_generators()]

    def restore(self) -> None:
        for read, write, value in self._switches:
            if _read(read) != value:
                write(value)
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)
        for generator, state in self._torch:
            generator.set_state(state)


class SavedProcess:
    """The environment, `sys.path` and the filters of warnings: imports write into all of them."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._path = list(sys.path)
        self._filters = list(warnings.filters)

    def restore(self) -> None:
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        sys.path[:] = self._path
        if warnings.filters != self._filters:
            warnings.filters[:] = self._filters  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (RuntimeError, AttributeError):  # newer torch refuses one set by its newer name
        return None


def _numpy_random() -> Any:
    import numpy

    return numpy.random


def _torch_generators() -> list[torch.Generator]:
    """The real generators, asked directly: an emulated device stands in for torch.cuda."""
    return [torch._C.default_generator, *getattr(torch.cuda, "default_generators", ())]
