"""Measures what a graph brings a model at several batch sizes, and where the gain ends."""

from __future__ import annotations

from graphdoctor.sweep.lengths import plan_lengths, read_lengths, sizes_to_sweep
from graphdoctor.sweep.run import sweep_target

__all__ = ["plan_lengths", "read_lengths", "sizes_to_sweep", "sweep_target"]
