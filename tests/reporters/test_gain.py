"""What is said of a measured speed-up."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.reporters.analysis.gain import measurement_rows
from graphdoctor.values.speed import LaunchSkew, Skew
from tests.support.reports import MEASUREMENT


def test_of_one_rank_neither_ranks_nor_their_skew_are_named() -> None:
    said = dict(measurement_rows(MEASUREMENT))
    assert "Launch skew" not in said
    assert said["Method"] == "wall clock, 30 interleaved pairs of blocks of 20 calls"


def test_of_several_ranks_it_is_said_whose_time_it_is_and_how_far_their_launches_part() -> None:
    skew = LaunchSkew(eager=Skew(60, 2644.0, 10137.0), graph=Skew(60, 11.0, 28.0))
    said = dict(measurement_rows(replace(MEASUREMENT, ranks=2, skew=skew)))
    assert said["Method"].endswith("blocks of 20 calls, each as long as on the slowest of 2 ranks")
    assert said["Launch skew"] == (
        "2.64 ms eager (95% within 10.1 ms), 11 µs as a graph (95% within 28 µs), in the median of the"
        " collectives, under the profiler"
    )
