"""A recording and its diagnosis in, the plan out: which operators can be captured together."""

from __future__ import annotations

from graphdoctor.partition.partition import partition
from graphdoctor.partition.plan import Plan, PlannedRegion

__all__ = ["Plan", "PlannedRegion", "partition"]
