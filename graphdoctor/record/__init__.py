"""Records the steady state of a target on a device, with one observer a run."""

from graphdoctor.record.record import record
from graphdoctor.record.session import Session, prepare

__all__ = ["Session", "prepare", "record"]
