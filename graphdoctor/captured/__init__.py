"""`graphdoctor.capture(model, *inputs)` makes a drop-in for a model, which replays what can be replayed."""

from graphdoctor.captured.entry import capture
from graphdoctor.captured.plan import CapturePlan

__all__ = ["CapturePlan", "capture"]
