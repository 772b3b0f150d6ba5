"""What this torch does otherwise than the one that facts were measured with."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphdoctor.target.state.dict_versions import shared_counter, version_function


class _Names(TorchDispatchMode):
    """Notes the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _stores_numbers_by_filling() -> bool:
    tensor = torch.zeros(2, 2)
    with _Names() as noted:
        tensor[0, 0] = 1.0
    return "aten.fill_.Scalar" in noted.names


# `x[i] = 1.0` copies a tensor of the number from the host to the device up to torch 2.14, and fills since.
STORES_NUMBERS_BY_FILLING = _stores_numbers_by_filling()
WHY_FILLING = "this torch fills from the number: nothing is copied from the host"

# The graph guards ask for these hooks: torch tells them since 2.7.
TELLS_SAVED_TENSOR_HOOKS = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
WHY_NO_HOOKS = "this torch does not tell the hooks on saved tensors, as of activation checkpointing"

# Python 3.13.0 reports no attribute that is set on an object: guards compare at each look there, as they do
# wherever a torch has no versions of dictionaries.
_version = version_function()
TELLS_DICT_WRITES = _version is not None
# Python 3.12 and newer: one question for all dictionaries.
COUNTS_DICT_WRITES = _version is not None and shared_counter(_version) is not None

MEASURED_WITH = (2, 11)  # the torch of the H200 that said what a capture takes
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
