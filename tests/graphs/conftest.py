"""The device that a test of whole steps runs on, and one thread."""

from __future__ import annotations

from tests.support.emulated import one_thread
from tests.support.whole_steps import exact

__all__ = ["exact", "one_thread"]
