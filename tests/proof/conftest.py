"""The device that a test of whole steps runs on."""

from __future__ import annotations

from tests.support.whole_steps import exact

__all__ = ["exact"]
