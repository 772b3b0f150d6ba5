"""`graphdoctor.capture(model, *inputs)`: a model -> a drop-in for it that replays what can be replayed."""

from graphdoctor.drop_in.entry import capture
from graphdoctor.drop_in.plan import CapturePlan

__all__ = ["CapturePlan", "capture"]
