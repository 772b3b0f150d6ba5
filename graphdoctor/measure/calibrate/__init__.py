"""Measures a device profile of this machine, or without a GPU the profile of its host."""

from __future__ import annotations

from graphdoctor.measure.calibrate.figures import calibrate, host_text, profile_text
from graphdoctor.measure.calibrate.host import measure_host

__all__ = ["calibrate", "host_text", "measure_host", "profile_text"]
