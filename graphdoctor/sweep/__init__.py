"""A model at several batch sizes -> what a graph brings at each, and where the gain ends."""

from __future__ import annotations

from graphdoctor.sweep.run import sweep_object, sweep_target

__all__ = ["sweep_object", "sweep_target"]
