"""A machine with a GPU -> a device profile with its own figures."""

from __future__ import annotations

from graphdoctor.measure.calibrate.figures import Calibrated, calibrate
from graphdoctor.measure.calibrate.machine import Machine
from graphdoctor.measure.calibrate.profile_file import profile_text

__all__ = ["Calibrated", "Machine", "calibrate", "profile_text"]
