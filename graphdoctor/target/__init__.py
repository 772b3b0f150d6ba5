"""A file or an object -> a `Target`: a step that runs again and again, and is put back."""

from __future__ import annotations

from graphdoctor.target.target import Inputs, Target

__all__ = ["Inputs", "Target"]
