"""`graphdoctor.capture(model, *inputs)`: a model -> a drop-in for it that replays what can be replayed."""

from graphdoctor.captured.entry import capture
from graphdoctor.captured.plan import CapturePlan

__all__ = ["CapturePlan", "capture"]
