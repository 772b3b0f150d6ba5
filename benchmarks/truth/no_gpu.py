"""Importing this hides the GPUs from this process and its forks, before torch is imported.

Processes that fork from one where CUDA has started cannot use it, and some imports look for a GPU.
"""

from __future__ import annotations

import os

_HIDING = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_BEFORE = dict(os.environ)
os.environ |= _HIDING


def shown() -> dict[str, str]:
    """The environment for a process that is started afresh and may see the GPUs."""
    kept = {name: value for name, value in os.environ.items() if name not in _HIDING}
    return kept | {name: _BEFORE[name] for name in _HIDING if name in _BEFORE}
