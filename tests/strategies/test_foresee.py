"""Predicting a strategy before it is tried."""

from __future__ import annotations

from typing import Any

import msgspec

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate import Calls, Observed, estimate, fitted_speedup
from graphdoctor.strategies import side_by_side
from graphdoctor.strategies.foresee import foresee, share_of
from graphdoctor.strategies.strategy import Captured, Known
from graphdoctor.strategies.trial import Terms
from graphdoctor.values.figures import Range
from tests.support import fake_strategies as fakes
from tests.support.strategy_rows import (
    PROFILE,
    TERMS,
    a_session,
    try_strategy,
)


def test_one_graph_of_all_launches_is_predicted_as_the_whole_step(device: EmulatedDevice) -> None:
    class All(fakes.Fake):
        def regions(self, known: Known) -> Any:
            return [[op.index for op in known.iteration.ops]]

    _, known = a_session(device)
    row = foresee(All(), known, PROFILE)
    assert row.predicted == estimate(known.iteration, PROFILE).speedup


def test_where_the_eager_step_was_observed_the_prediction_goes_out_from_there(
    device: EmulatedDevice,
) -> None:
    _, known = a_session(device)
    regions = fakes.Fake().regions(known)
    seen = Observed(wall_us=5_000.0, busy_us=20.0)
    row = foresee(fakes.Fake(), known, PROFILE, observed=seen)
    assert row.predicted == fitted_speedup(known.iteration, PROFILE, regions, observed=seen)
    assert row.predicted != foresee(fakes.Fake(), known, PROFILE).predicted
    wall = Range(5_000.0, 5_000.0, 5_000.0)
    busy = Range(20.0, 20.0, 20.0)
    measured = msgspec.structs.replace(
        estimate(known.iteration, PROFILE), basis="measured", eager_us=wall, device_busy_us=busy
    )
    assert side_by_side.observed_by(measured) == seen


class HoldsHalf(fakes.Fake):
    """Foresees two graphs, and makes the first of them only."""

    def build(self, session: Any, known: Known) -> Any:
        built: Any = super().build(session, known)
        regions = tuple(self.regions(known) or ())[:1]
        built.holds = lambda known: Captured(tuple(map(tuple, regions)), Calls(module=3))
        return built


def test_what_was_built_is_predicted_from_what_really_went_into_graphs(
    device: EmulatedDevice,
) -> None:
    session, known = a_session(device)
    foreseen = foresee(HoldsHalf(), known, PROFILE)
    row = try_strategy(HoldsHalf(), session, known, terms=TERMS)
    first = tuple(fakes.Fake().regions(known) or ())[:1]
    assert row.predicted == estimate(known.iteration, PROFILE, first, calls=Calls(module=3)).speedup
    assert row.captured_share == share_of(first, known.iteration)
    assert foreseen.captured_share == 1.0 > (row.captured_share or 0.0)


def test_what_was_built_is_predicted_from_the_eager_step_that_was_observed(
    device: EmulatedDevice,
) -> None:
    session, known = a_session(device)
    seen = Observed(wall_us=5_000.0, busy_us=20.0)
    row = try_strategy(HoldsHalf(), session, known, terms=Terms(PROFILE, observed=seen))
    first = tuple(fakes.Fake().regions(known) or ())[:1]
    assert row.predicted == fitted_speedup(
        known.iteration, PROFILE, first, observed=seen, calls=Calls(module=3)
    )
