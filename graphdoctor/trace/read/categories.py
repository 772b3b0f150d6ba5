"""The content of a trace file -> the same with the categories that TensorBoard's plugin knows."""

from __future__ import annotations

import re

# torch-tb-profiler 0.4.3, the last release, knows the categories of 2021: with today's names every
# device time is 0 (pytorch/kineto#1166, fixed there and never released).
_TENSORBOARD_CATEGORIES = {
    b"cuda_runtime": b"Runtime",
    b"cuda_driver": b"Runtime",
    b"fwdbwd": b"forward_backward",
}
_CATEGORY = re.compile(rb'("cat"\s*:\s*")(cuda_runtime|cuda_driver|fwdbwd)"')


def for_tensorboard(content: bytes) -> bytes:
    """The trace with categories that torch-tb-profiler knows, so that it shows device times."""
    return _CATEGORY.sub(lambda match: match[1] + _TENSORBOARD_CATEGORIES[match[2]] + b'"', content)
