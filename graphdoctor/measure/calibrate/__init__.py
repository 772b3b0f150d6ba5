"""A machine -> a device profile with its own figures, or without a GPU the profile of its host."""

from __future__ import annotations

from graphdoctor.measure.calibrate.figures import calibrate
from graphdoctor.measure.calibrate.host import measure_host
from graphdoctor.measure.calibrate.profile_file import host_text, profile_text

__all__ = ["calibrate", "host_text", "measure_host", "profile_text"]
