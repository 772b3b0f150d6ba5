"""A target on a device -> a recording of its steady state, by one observer a run."""

from graphdoctor.record.record import record
from graphdoctor.record.session import Session, prepare

__all__ = ["Session", "prepare", "record"]
