"""A device that is busy, and computes little -> what it is busy with, in words."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.trace.explain.verdict import Judgement
from graphdoctor.values.trace_work import DeviceWork

_MOST = 0.5  # of the time
_COPIES = (
    "copies between host and device",
    "Keep on the device what every step copies, or copy it while kernels run: from pinned memory, with"
    " non_blocking=True, on a stream of its own.",
)
_COLLECTIVES = (
    "collectives, waiting for other ranks included",
    "Give `graphdoctor trace` a folder with the traces of all ranks: it tells waiting from working, and names the"
    " rank that the others wait for.",
)


def occupied(judged: Judgement, work: DeviceWork, step_us: float) -> Judgement:
    """The judgement of a busy device, with what it does instead of computing where that is most of the step.

    "Look at the kernels" would be wrong advice for it.
    """
    if judged.verdict != "gpu-bound":
        return judged
    for exposed_us, (what, advice) in _exposed(work):
        share = exposed_us / step_us if step_us else 0.0
        if share > _MOST:
            reason = f" For {share:.0%} of the time there is nothing on it but {what}."
            return replace(judged, reason=judged.reason + reason, advice=advice)
    return judged


def _exposed(work: DeviceWork) -> Iterator[tuple[float, tuple[str, str]]]:
    """What may run alone on the device, and how long it does in a step."""
    yield work.copies_exposed_us, _COPIES
    if work.communication is not None:
        yield work.communication.exposed_us, _COLLECTIVES
