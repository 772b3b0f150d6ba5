"""Predicts times as ranges from a recording and a device profile. No torch."""

from __future__ import annotations

from graphdoctor.estimate.calls import NO_CALLS, Calls, Regions
from graphdoctor.estimate.cause_cost import with_costs
from graphdoctor.estimate.costs import op_cost
from graphdoctor.estimate.fitted import Observed, fitted_speedup
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.predict import estimate, on_other_hosts, saving_us, step_lanes

__all__ = [
    "NO_CALLS",
    "Calls",
    "Observed",
    "Regions",
    "estimate",
    "fitted_speedup",
    "launches",
    "on_other_hosts",
    "op_cost",
    "saving_us",
    "step_lanes",
    "with_costs",
]
