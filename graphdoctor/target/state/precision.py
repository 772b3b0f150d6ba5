"""How torch's kernels may round float32 within: one switch for each backend and operator, since torch 2.9.

The older switches set these, too, but refuse to answer once somebody has set a newer one to something else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Switch = tuple[str, str]  # backend and operator
# Those of all operators first: the others follow them until they are set themselves.
PRECISIONS: tuple[Switch, ...] = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)


def read_precision(switch: Switch) -> str:
    read: Callable[[str, str], str] = vars(torch._C)["_get_fp32_precision_getter"]
    return read(*switch)


def set_precision(switch: Switch, precision: str) -> None:
    write: Callable[[str, str, str], object] = vars(torch._C)["_set_fp32_precision_setter"]
    write(*switch, precision)


def has_precisions() -> bool:
    return hasattr(torch._C, "_get_fp32_precision_getter")
