"""Several targets -> a report or a fault each, in processes of their own."""

from __future__ import annotations

from graphdoctor.check.processes.fleet import run_all

__all__ = ["run_all"]
