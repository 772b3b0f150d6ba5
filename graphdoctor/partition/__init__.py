"""Plans which operators of a recording can be captured together."""

from __future__ import annotations

from graphdoctor.partition.partition import partition
from graphdoctor.partition.regions import Plan, PlannedRegion

__all__ = ["Plan", "PlannedRegion", "partition"]
