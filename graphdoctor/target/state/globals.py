"""Save and restore state of the process: random generators, torch's switches, environment variables.

Most switches are in C: kernels are chosen by them, and no operator shows them. The list is also what
`graphs/guards/modes.py` compares before a replay.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from graphdoctor.target.state.kinds.plain_values import saved_random

Precision = tuple[str, str]  # backend and operator
# How torch's kernels may round float32 within: one switch for each backend and operator, since torch 2.9; before, none.
# The older ones set these, too, but refuse to answer once somebody has set a newer one to something else. Those of all
# operators first: the others follow them until they are set themselves.
PRECISIONS: tuple[Precision, ...] = ()
if hasattr(torch._C, "_get_fp32_precision_getter"):
    _operators = ("all", "matmul", "conv", "rnn")
    PRECISIONS = (("generic", "all"), *product(("cuda", "mkldnn"), _operators))


def read_precision(switch: Precision) -> str:
    read: Callable[[str, str], str] = vars(torch._C)["_get_fp32_precision_getter"]
    return read(*switch)


def set_precision(switch: Precision, precision: str) -> None:
    write: Callable[[str, str, str], object] = vars(torch._C)["_set_fp32_precision_setter"]
    write(*switch, precision)


ATTENTION = ("attention", "softmax", "transformer", "flash", "efficient")
_CONVOLUTION = ("conv", "norm", "rnn", "lstm", "gru", "cudnn", "ctc", "grid", "miopen")
_LINEAR_ALGEBRA = (
    *("linalg", "cholesky", "lu_", "svd", "eig", "inv"),
    *("geqrf", "orgqr", "ormqr", ".qr.", "solve"),
)
_HALF = (" float16",)
EVERY = ("",)
# What chooses a CPU's kernels, what others of these follow from, and what is too slow to ask before each replay.
_NONE: tuple[str, ...] = ()


class Switch(NamedTuple):
    """`torch._C._get_<name>`, and `_set_<name>` where this torch has it.

    `operators`: words of which one is in the name of each operator of torch's whose kernels on a GPU are chosen by
    it, or among the dtypes of its tensors. Attention, as an example, may have been taken apart into a softmax.
    """

    name: str
    meaning: str
    operators: tuple[str, ...] = EVERY
    precisions: tuple[str, ...] = ()  # the operators of the newer switches that it stands for

    @property
    def read(self) -> Callable[[], Any]:
        return getattr(torch._C, f"_get_{self.name}")  # type: ignore[no-any-return]

    @property
    def write(self) -> Callable[[Any], object] | None:
        kernel = self.name.removesuffix("_sdp_enabled")
        names = (f"_set_{self.name}", f"_set_sdp_use_{kernel}")
        write = next((found for name in names if (found := getattr(torch._C, name, None))), None)
        # Some are of two parts, which torch tells as a pair and takes as two arguments.
        return write and (lambda value: write(*value if isinstance(value, tuple) else (value,)))

    def asked_quickly(self) -> Callable[[], object]:
        """The old switch, which is quicker; where the newer ones keep it from answering, those.

        It answers only while they agree with it, so that one that answers leaves nothing out.
        """
        try:
            self.read()
        except RuntimeError:
            newer = [("cuda", operator) for operator in self.precisions]
            return lambda: ", ".join(map(read_precision, newer))
        return self.read


_KNOWN = (
    Switch("cudnn_enabled", "cudnn.enabled", _CONVOLUTION),
    Switch("cudnn_benchmark", "cudnn.benchmark", _CONVOLUTION),
    Switch("cudnn_deterministic", "cudnn.deterministic", _CONVOLUTION),
    Switch("cudnn_allow_tf32", "TF32 in cudnn", _CONVOLUTION, precisions=("conv", "rnn")),
    Switch("cublas_allow_tf32", "the precision of matrix products", precisions=("matmul",)),
    Switch("float32_matmul_precision", "torch.get_float32_matmul_precision", _NONE),
    Switch("cublas_allow_fp16_accumulation", "half-precision accumulation", _HALF),
    Switch("cublas_allow_fp16_reduced_precision_reduction", "half-precision sums"),
    Switch("cublas_allow_bf16_reduced_precision_reduction", "bfloat16 sums"),
    # To ask for one of these libraries takes 2.4 us, a third of what the guards of a captured call do.
    Switch("blas_preferred_backend", "the preferred library of matrix products", _NONE),
    Switch("linalg_preferred_backend", "the preferred library of linear algebra", _LINEAR_ALGEBRA),
    Switch("sdp_priority_order", "the order of attention's kernels", ATTENTION),
    Switch("flash_sdp_enabled", "flash attention", ATTENTION),
    Switch("mem_efficient_sdp_enabled", "memory-efficient attention", ATTENTION),
    Switch("cudnn_sdp_enabled", "cudnn's attention", ATTENTION),
    Switch("math_sdp_enabled", "plain attention", ATTENTION),
    Switch(
        *("math_sdp_allow_fp16_bf16_reduction", "plain attention's sums in half precision"),
        ATTENTION,
    ),
    Switch("fa3_sdp_enabled", "FlashAttention-3", ATTENTION),
    Switch("overrideable_sdp_enabled", "overridden attention", ATTENTION),
    Switch("rocm_fa_preferred_backend", "the preferred flash attention of ROCm", _NONE),
    Switch("nnpack_enabled", "NNPACK", _NONE),
    Switch("qengine", "the engine of quantized operators", _NONE),
    Switch("mkldnn_enabled", "oneDNN", _NONE),
    Switch("mkldnn_deterministic", "deterministic algorithms of oneDNN", _NONE),
    Switch("onednn_allow_tf32", "TF32 in oneDNN", _NONE),
)
SWITCHES = tuple(each for each in _KNOWN if hasattr(torch._C, f"_get_{each.name}"))
KERNELS_OF_ATTENTION = tuple(each.name for each in SWITCHES if each.operators == ATTENTION)


_Switch = tuple[str, Callable[[], Any], Callable[[Any], object]]


def _filters() -> tuple[object, tuple[object, ...]]:
    return warnings.filters, tuple(warnings.filters)


def _set_filters(saved: tuple[object, tuple[object, ...]]) -> None:
    held, filters = saved
    if warnings.filters is held:  # and not those of a block of `catch_warnings`
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _environment() -> dict[Any, Any]:
    """A copy of the variables, encoded as they are kept: to decode all of them takes ten times as long."""
    return dict(getattr(os.environ, "_data", os.environ))


def _set_environment(variables: dict[Any, Any]) -> None:
    os.environ.clear()
    os.environ.update(_decoded(variables))


def _decoded(variables: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}


_ENVIRONMENT = "os.environ"


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
    *((switch.name, switch.read, switch.write) for switch in SWITCHES if switch.write is not None),
    ("anomaly detection", torch.is_anomaly_enabled, lambda on: torch.set_anomaly_enabled(on)),
    # After those that set them, too.
    *(
        (f"precision of {switch}", partial(read_precision, switch), partial(set_precision, switch))
        for switch in PRECISIONS
    ),
    ("the filters of warnings", _filters, _set_filters),  # imports add to them
    (_ENVIRONMENT, _environment, _set_environment),
)


_last: tuple[dict[str, Any], dict[str, str]] = {}, {}


def process_values() -> dict[str, str]:
    """What the process's switches and environment are, by name; converted to text again only if one has changed."""
    global _last
    now = {name: value for name, read, _ in _SWITCHES if (value := _read(read)) is not None}
    before, written = _last
    if now != before:
        written = {name: repr(value) for name, value in now.items() if name != _ENVIRONMENT}
        variables = _decoded(now[_ENVIRONMENT])
        written |= {f"{_ENVIRONMENT}.{name}": value for name, value in variables.items()}
        _last = now, written
    return written


_kept: list[str] = []


@contextmanager
def keeping(*names: str) -> Iterator[None]:
    """Let `SavedGlobals.restore` leave these switches as they are.

    A proof runs steps with modes of its own, and restores the state of the step between its runs.
    """
    _kept.extend(names)
    try:
        yield
    finally:
        del _kept[len(_kept) - len(names) :]


class SavedGlobals:
    """Python's, NumPy's (if it was imported) and torch's generators, and torch's switches."""

    def __init__(self) -> None:
        self._switches = [
            (name, read, write, value)
            for name, read, write in _SWITCHES
            if (value := _read(read)) is not None
        ]
        self._generators = [saved_random(generator) for generator in _generators()]

    def restore(self) -> None:
        for name, read, write, value in self._switches:
            if name not in _kept and _read(read) != value:
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
