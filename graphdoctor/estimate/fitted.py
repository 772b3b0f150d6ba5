"""Fits the prediction to a step's measured times, for the speed-up of graphs over parts of it.

The profile's figures of operators are those of some host and some library versions. Where the step's own
wall time and the device's busy time were measured, its operators are scaled until the step takes just
these; what then remains of the profile are the figures of graphs: launching one, and gaps in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.calls import NO_CALLS, Calls, Regions, calling, handed_over
from graphdoctor.estimate.gpus import DeviceProfile, Figure, Level
from graphdoctor.estimate.predict import graph_pieces
from graphdoctor.estimate.ranges import around, from_eager
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.estimate.two_lanes import Case, Piece, Work, settled, taken_in_a_row, work_of
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import Iteration

_SLOWEST_HOST, _FASTEST_HOST = 100.0, 0.01  # times the profile's
_ROUNDS = 24  # of halving the factor's bounds, which leaves a millionth of it
MIDDLE = Case("mid", "mid", 1.0, 1.0)
_SCALED = "scaled to this step's measured time"
BLOCK_US = 10_000.0  # calls are timed in a row for so long, as measure/wall_clock.py does it


class Observed(Struct, frozen=True):
    """What was measured of one eager step: wall time without a profiler, and the device's busy time.

    `most_calls` is how many calls in a row the step may be timed for.
    """

    wall_us: float
    busy_us: float
    most_calls: int = 10_000


class Factors(Struct, frozen=True):
    """How many times longer than in the profile host and device take."""

    host: float
    device: float


def fitted_speedup(
    iteration: Iteration,
    profile: DeviceProfile,
    regions: Regions | None,
    *,
    observed: Observed,
    calls: Calls = NO_CALLS,
) -> Range:
    """Eager's wall time over the time with these regions as graphs; None: the whole step as one.

    The range goes out from the profile's bounds for launching a graph and for the gaps between its
    nodes, and is as wide as measurements ask for (`widths`). `calls` is what calling the graphs costs
    beside their launches.
    """
    found = corners_from_eager(iteration, profile, regions, observed=observed, calls=calls)
    width = from_eager(
        is_whole=regions is None and calls == NO_CALLS,
        has_segments=bool(calls.segment or calls.trained_segment),
        has_glue=bool(calls.glue),
    )
    return width.of(found)


def corners_from_eager(
    iteration: Iteration,
    profile: DeviceProfile,
    regions: Regions | None,
    *,
    observed: Observed,
    calls: Calls = NO_CALLS,
) -> Range:
    """The same, as wide as the profile's bounds alone make it."""
    eager = tuple(eager_pieces(iteration.ops, profile, events=iteration.events))
    factors = factors_of(eager, profile, observed)
    here = profile_scaled(profile, factors.host)
    left = (
        *handed_over(iteration, profile, regions, calls),
        *graph_pieces(iteration, profile, regions, eager),
    )
    pieces = (
        *(scaled_piece(piece, calling_factors(factors)) for piece in calling(calls, profile)),
        *(scaled_piece(piece, factors) for piece in left),
    )
    ends: tuple[Level, Level] = ("low", "high")
    cases = [MIDDLE, *(Case(host, device, 1.0, 1.0) for host in ends for device in ends)]
    works = [work_of(pieces, here, case) for case in cases]
    spans = [max(timed_us(work, observed.most_calls), 1e-3) for work in works]
    return around([observed.wall_us / span for span in spans])


def timed_us(work: Work, most_calls: int) -> float:
    """What measuring it will find, of one call in a block."""
    calls = ceil(BLOCK_US / max(settled(work).span_us, 1e-3))
    return taken_in_a_row(work, min(calls, most_calls))


def calling_factors(factors: Factors) -> Factors:
    """How much longer calling graphs takes: a step's factor is half the host's speed, and half its own operators'."""
    return replace(factors, host=factors.host**0.5)


def factors_of(eager: Sequence[Piece], profile: DeviceProfile, observed: Observed) -> Factors:
    """The device's from its busy time; then the host's, so that the step takes the wall time."""
    busy_us = sum(piece.device_us.mid for piece in eager)
    device = observed.busy_us / busy_us if busy_us else 1.0
    low, high = _FASTEST_HOST, _SLOWEST_HOST
    work = work_of(eager, profile, MIDDLE)
    for _ in range(_ROUNDS):
        middle = (low * high) ** 0.5
        if settled(work.scaled(host=middle, device=device)).span_us < observed.wall_us:
            low = middle
        else:
            high = middle
    return Factors(low, device)


def scaled_piece(piece: Piece, factors: Factors) -> Piece:
    """The piece as this host and this device do it; only launching a graph stays the profile's."""
    device_us = (
        piece.device_us if piece.is_copy else Range.exact(piece.device_us.mid * factors.device)
    )
    if piece.nodes:
        return replace(piece, device_us=device_us)
    return replace(
        piece, host_us=Range.exact(piece.host_us.mid * factors.host), device_us=device_us
    )


def profile_scaled(profile: DeviceProfile, host: float) -> DeviceProfile:
    """Launches are a part of what operators cost the host, and scaled with them."""
    launch_us = profile.launch_us.mid * host
    return replace(profile, launch_us=Figure(launch_us, launch_us, launch_us, _SCALED))
