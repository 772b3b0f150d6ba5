"""torch's own table of operators -> its entries, and samples of one entry drawn with a seed."""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest import mock

MOST_SAMPLES = 300  # of one entry that are generated to choose from
PREFERRED = ("float32", "complex64", "int64", "bool", "float64", "int32", "uint8", "float16")
_PROBE = """
import json, torch
print(json.dumps(dict(
    gpu=torch.cuda.get_device_name(0), capability=torch.cuda.get_device_capability(0),
    torch=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())))
"""


@dataclass(frozen=True)
class Sample:
    """What an entry is called with: the arguments, and how to call it with them."""

    function: Callable[..., Any]
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.input, self.args, self.kwargs)

    def call(self) -> Any:
        return self.function(self.input, *self.args, **self.kwargs)


def probe_gpu() -> dict[str, Any]:
    """What the GPU and torch are, found out by another process so that this one can still fork."""
    found = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        raise SystemExit(f"No CUDA device answers: {found.stderr.strip().splitlines()[-1:]}")
    probed: dict[str, Any] = json.loads(found.stdout)
    return probed


def load_op_db(capability: Sequence[int] | None) -> list[Any]:
    """Import the table; with a capability, as on such a GPU and without touching one."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    allow_missing_expecttest()
    if capability is None:
        return _import_op_db()
    with _answering(tuple(capability)):
        return _import_op_db()


def _import_op_db() -> list[Any]:
    with mock.patch("torch.backends.disable_global_flags"):  # for the whole process
        from torch.testing._internal import common_methods_invocations as table

    table.wrapper_set_seed = _without_seed  # type: ignore[attr-defined]
    return list(table.op_db)


def _without_seed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Entries that draw set the seed at each call, which no capture allows and nobody's model does."""
    return function(*args, **kwargs)


def allow_missing_expecttest() -> None:
    """torch's test helpers import a package that they need for expected outputs only."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module


@contextmanager
def _answering(capability: tuple[int, ...]) -> Iterator[None]:
    """The table asks for the capability while it is imported, which would initialise CUDA here."""
    import torch

    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_properties": types.SimpleNamespace(major=capability[0], minor=capability[1]),
    }
    before = {name: getattr(torch.cuda, name) for name in answers}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(torch.cuda, name, original)


def entry_name(entry: Any) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def dtype_of(entry: Any, *, needs_grad: bool) -> Any:
    """float32 where the entry supports it on CUDA, or else the first that it does; None: none."""
    import torch

    supported = entry.supported_backward_dtypes if needs_grad else entry.supported_dtypes
    names = {str(dtype).removeprefix("torch.") for dtype in supported("cuda")}
    chosen = next((name for name in (*PREFERRED, *sorted(names)) if name in names), None)
    return getattr(torch, chosen) if chosen is not None else None


def draw(entry: Any, dtype: Any, seed: int, *, needs_grad: bool = False) -> list[Sample]:
    """The entry's samples on CUDA; equal seeds give equal values."""
    import numpy
    import torch
    from torch.testing._internal.common_utils import TrackedInputIter

    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    may_keep_seed = "set_seed" in inspect.signature(TrackedInputIter.__init__).parameters
    options = {"set_seed": False} if may_keep_seed else {}  # or each sample gets the same values
    # torch looks for its own test class in the callers, and for each in all files that are imported.
    with mock.patch.object(inspect, "stack", list):
        samples = entry.sample_inputs("cuda", dtype, requires_grad=needs_grad, **options)
        return [
            Sample(entry.op, sample.input, tuple(sample.args), dict(sample.kwargs))
            for sample in islice(samples, MOST_SAMPLES)
        ]


def spread(count: int, wanted: int) -> list[int]:
    """At most `wanted` of `count` indices, evenly spread, the first and the last among them."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)})
