"""Importing this hides the GPUs from this process, before torch is imported.

Processes that fork from one where CUDA has started cannot use it, and some imports look for a GPU.
"""

from __future__ import annotations

import os

_NAME = "CUDA_VISIBLE_DEVICES"
_BEFORE = os.environ.get(_NAME)
os.environ |= {_NAME: "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def no_more() -> None:
    """Shows the GPUs again, in a process that may start CUDA."""
    del os.environ[_NAME]
    if _BEFORE is not None:
        os.environ[_NAME] = _BEFORE
