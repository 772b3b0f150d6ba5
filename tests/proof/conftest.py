"""The device that a test runs on."""

from __future__ import annotations

from tests.support.emulated import device
from tests.support.whole_steps import exact

__all__ = ["device", "exact"]
