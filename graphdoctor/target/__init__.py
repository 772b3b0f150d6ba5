"""A file or an object -> a `Target`: a step that can be run again and again, on fresh inputs, and put back."""

from __future__ import annotations

from graphdoctor.target.target import Inputs, Target

__all__ = ["Inputs", "Target"]
