"""What findings cost a step: hand-built recordings against the estimate of the same step without them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.estimate import estimate, with_costs
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.values.figures import Range, cost_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import Sync
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Op
from tests.support.builders import iteration, op, recording, tensor

H100 = load_profile("h100")
READ, COPIED, LOOKED_AT = 7, 8, 9


def finding(line: int | None, **fields: object) -> Finding:
    place = Location("model.py", line) if line is not None else None
    made = Finding("GD101", "host-read", "capture-fails", "", "", "", place)
    return replace(made, **fields)  # type: ignore[arg-type]


def cost_of(found: Finding, *iterations: Iteration) -> Range | None:
    (costed,) = with_costs([found], recording(*iterations), H100)
    assert (costed.cost_us is None) == (costed.cost_source == "")
    return costed.cost_us


def unwaited(found: Op) -> Op:
    return replace(found, tags=())


def kernels(count: int, first: int = 0, elements: int = 64) -> list[Op]:
    return [
        op("aten.mul.Tensor", [tensor(at, elements), 2.0], [tensor(at + 1, elements)])
        for at in range(first, first + count)
    ]


def read(storage: int, line: int = READ) -> Op:
    return op("aten._local_scalar_dense.default", [tensor(storage)], line=line)


def copied(storage: int, *more: object, line: int = COPIED) -> Op:
    host, device = tensor(storage, 64, device="cpu"), tensor(storage + 1, 64)
    return op(
        "aten.copy_.default", [device, host, *more], [device], line=line, writes=[storage + 1]
    )  # type: ignore[list-item]


def test_a_read_costs_what_the_step_takes_more_than_without_it() -> None:
    busy, after = kernels(20, elements=4_000_000), kernels(20, first=30)
    cost = cost_of(finding(READ), iteration([*busy, read(20), *after]))
    with_it = estimate(iteration([*busy, read(20), *after]), H100).eager_us
    without = estimate(iteration([*busy, *after]), H100).eager_us
    assert cost is not None and cost.low <= cost.mid <= cost.high
    assert cost.mid == pytest.approx(with_it.mid - without.mid, rel=0.02)


def test_forty_reads_of_one_line_cost_more_than_one() -> None:
    one = cost_of(finding(READ), iteration([*kernels(40), read(40)]))
    pairs = [each for at in range(40) for each in (*kernels(1, first=at), read(at + 1))]
    many = cost_of(finding(READ), iteration(pairs))
    assert one is not None and many is not None
    assert many.mid > 10 * one.mid


def test_a_wait_that_another_takes_over_costs_next_to_nothing() -> None:
    """The read on the next line would wait for the same kernels."""
    ops = [*kernels(20, elements=40_000_000), read(20, line=READ), read(20, line=COPIED)]
    alone = cost_of(finding(READ), iteration(ops[:-1]))
    beside = cost_of(finding(READ), iteration(ops))
    assert alone is not None and beside is not None
    kernel_us = estimate(iteration(ops[:20]), H100).device_busy_us.mid
    assert beside.mid < 0.1 * kernel_us


def test_an_operator_that_computes_stays_and_only_its_wait_goes() -> None:
    big, flat = tensor(5, 40_000_000), tensor(6, 64, dtype="int64")
    waits = op("mine.rows.default", [big], [flat], line=READ, tags=["dynamic_output_shape"])
    step = [
        iteration([*kernels(5), each, *kernels(40, first=10)]) for each in (waits, unwaited(waits))
    ]
    cost = cost_of(finding(READ), step[0])
    before, after = (estimate(each, H100).eager_us.mid for each in step)
    assert cost is not None and cost.mid == pytest.approx(before - after)


def test_a_backward_that_waits_costs_at_the_line_of_its_forward() -> None:
    forward = op(
        "aten.cumprod.default", [tensor(5, 40_000_000), 0], [tensor(6, 40_000_000)], line=READ
    )
    backward = op("aten.mul.Tensor", [tensor(6, 4)], [tensor(7, 4)], line=READ, phase="backward")
    made = iteration([*kernels(5), forward, backward, *kernels(40, first=10)])
    linked = list(made.ops)
    linked[6] = replace(linked[6], forward_index=5)
    cost = cost_of(finding(READ), replace(made, ops=tuple(linked)))
    assert cost is not None and cost.mid > 0
    assert cost_of(finding(READ), made) is None


def test_an_explicit_wait_costs_and_belongs_to_its_own_line() -> None:
    event = Sync("torch.cuda.synchronize", 20, Location("model.py", LOOKED_AT))
    step = replace(iteration([*kernels(20), *kernels(20, first=30)]), events=(event,))
    at_end = replace(iteration(kernels(20)), events=(event,))
    for each in (step, at_end):
        cost = cost_of(finding(LOOKED_AT), each)
        assert cost is not None and cost.mid > 0
        assert cost_of(finding(READ), each) is None


def test_a_line_that_never_waits_or_copies_has_no_cost() -> None:
    step = iteration([*kernels(10), read(10)])
    assert cost_of(finding(1), step) is None
    assert cost_of(finding(None), step) is None
    assert cost_of(finding(READ, effect="replay-is-wrong"), step) is None
    assert cost_of(finding(READ), iteration(kernels(10))) is None


def test_a_copy_costs_more_where_the_host_waits_for_it() -> None:
    waits = cost_of(finding(COPIED), iteration([*kernels(10), copied(20), *kernels(10, first=30)]))
    goes_on = cost_of(
        finding(COPIED), iteration([*kernels(10), copied(20, True), *kernels(10, first=30)])
    )
    assert waits is not None and goes_on is not None
    assert waits.mid > goes_on.mid > 0


def test_a_line_of_a_library_costs_each_of_its_callers_its_own() -> None:
    library = Location("/x/site-packages/lib/a.py", READ)
    mine, other = Location("model.py", 1), Location("model.py", 2)
    ops = [
        replace(read(at), location=library, stack=(caller,))
        for at, caller in ((3, mine), (4, other), (5, other))
    ]
    step = iteration([each for one in ops for each in (*kernels(2), one)])
    once = cost_of(finding(READ, location=library, stack=(mine,)), step)
    twice = cost_of(finding(READ, location=library, stack=(other,)), step)
    assert once is not None and twice is not None and once.mid < twice.mid


def test_the_last_iteration_that_has_the_line_is_the_one_that_counts() -> None:
    with_read = iteration([*kernels(10), read(10)], index=0)
    without = iteration(kernels(10), index=1)
    assert cost_of(finding(READ), with_read, without) == cost_of(finding(READ), with_read)


def test_the_cost_is_shown_with_its_bounds_and_that_it_is_predicted() -> None:
    shown = cost_text(Range(150, 300, 500), "predicted for NVIDIA H100 SXM5 80GB")
    assert shown == "about 300 \u00b5s (150 to 500 \u00b5s), predicted"


def test_a_copy_costs_what_the_step_takes_more_than_without_it() -> None:
    """The device is busy all the time: without the copy its kernel and the pause before it are gone, too."""
    busy = kernels(20, elements=4_000_000)
    told = op(
        "aten.copy_.default", [tensor(41, 64), tensor(40, 64, device="cpu"), True],
        [tensor(41, 64)], line=COPIED, writes=[41],
    )  # fmt: skip
    cost = cost_of(finding(COPIED), iteration([*busy, told, *kernels(20, first=50)]))
    with_it = estimate(iteration([*busy, told, *kernels(20, first=50)]), H100).eager_us
    without = estimate(iteration([*busy, *kernels(20, first=50)]), H100).eager_us
    assert cost is not None
    assert cost.mid == pytest.approx(with_it.mid - without.mid, rel=0.02)
