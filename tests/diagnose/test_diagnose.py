"""Hand-built recordings become findings: worst first, counted, with their lines and frames."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from graphdoctor.diagnose.diagnose import Diagnosis, _cure, diagnose, excerpt_at
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.host_read import HostRead
from graphdoctor.rules.rule import Hit
from graphdoctor.values.finding import Cure, Edit
from graphdoctor.values.host_events import RefusedOptimizer
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import (
    External,
    Iteration,
    Leaf,
    Op,
    OptimizerInfo,
    Recording,
    TensorUse,
)
from tests.support.checking import finding


def use(storage: int, *shape: int, device: str = "cuda:0") -> TensorUse:
    return TensorUse(
        storage=storage,
        shape=shape,
        stride=(1,) * len(shape),
        offset=0,
        dtype="float32",
        device=device,
        itemsize=4,
    )


def op(index: int, name: str, *args, outputs=(), location=None, **changes) -> Op:
    fields = {"kwargs": (), "writes": (), "tags": (), "phase": "forward", "module": "", **changes}
    return Op(
        index=index,
        name=name,
        args=args,
        outputs=tuple(outputs),
        device="cuda:0",
        location=location,
        **fields,
    )


def iteration(index: int, ops, *, events=(), externals=(), inputs=()) -> Iteration:
    return Iteration(
        index=index,
        capturing=True,
        inputs=tuple(inputs),
        ops=tuple(ops),
        events=tuple(events),
        externals=tuple(externals),
        outputs=(),
        changes=(),
    )


def recording(*iterations: Iteration, **changes) -> Recording:
    return Recording(
        device="emulated", mode="training", eager=(), captured=tuple(iterations), **changes
    )


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "model.py"
    file.write_text("".join(f"line_{number}()\n" for number in range(1, 21)))
    return str(file)


def test_an_excerpt_holds_three_lines_either_side_and_stops_at_the_ends(source: str) -> None:
    middle = excerpt_at(Location(source, 10))
    assert middle is not None
    assert (middle.first_line, len(middle.lines)) == (7, 7)
    assert middle.lines[3] == "line_10()"
    first = excerpt_at(Location(source, 1))
    assert first is not None
    assert first.lines == ("line_1()", "line_2()", "line_3()", "line_4()")
    assert excerpt_at(Location(source, 99)) is None
    assert excerpt_at(Location("nowhere.py", 1)) is None
    assert excerpt_at(None) is None


def test_findings_come_worst_first_then_in_execution_order(source: str) -> None:
    ops = [
        op(
            0,
            "aten.mul_.Tensor",
            use(1, 4),
            outputs=[use(1, 4)],
            writes=(1,),
            location=Location(source, 2),
        ),
        op(1, "aten._local_scalar_dense.default", use(2), location=Location(source, 9)),
        op(2, "aten._local_scalar_dense.default", use(2), location=Location(source, 4)),
    ]
    given = External(storage=1, origin="input", name="inputs[0]", device="cuda:0")
    findings = diagnose(recording(iteration(0, ops, externals=[given]))).findings
    assert [(f.rule, f.location.line if f.location else 0) for f in findings] == [
        ("GD101", 9),
        ("GD101", 4),
        ("GD210", 2),
    ]
    assert findings[0].excerpt is not None


LIBRARY = Location("/venv/lib/python3.11/site-packages/library/core.py", 7)


def _read(index: int, location: Location, *stack: Location) -> Op:
    name = "aten._local_scalar_dense.default"
    return op(index, name, use(1), location=location, stack=stack)


def test_every_frame_is_kept(source: str) -> None:
    stack = (LIBRARY, Location(source, 3))
    read = _read(0, Location(source, 1), *stack)
    (finding,) = diagnose(recording(iteration(0, [read]))).findings
    assert finding.stack == stack


def test_a_library_s_line_is_a_finding_for_each_line_of_the_user_that_calls_it(source: str) -> None:
    ops = [_read(index, LIBRARY, Location(source, line)) for index, line in enumerate((3, 9, 3))]
    findings = diagnose(recording(iteration(0, ops))).findings
    assert [(f.location, f.stack[0].line, f.count) for f in findings] == [
        (LIBRARY, 3, 2),
        (LIBRARY, 9, 1),
    ]


def test_the_fix_of_a_library_s_line_names_the_line_of_the_user_that_calls_it(source: str) -> None:
    ops = [_read(0, LIBRARY, Location(source, 3)), _read(1, Location(source, 9))]
    in_library, own = diagnose(recording(iteration(0, ops))).findings
    way_out = f"keep line 3 of {Path(source).name}, which calls it, outside the captured region."
    assert in_library.fix.endswith(way_out)
    assert "library" not in own.fix


def test_a_cure_in_the_user_s_file_leaves_nothing_to_say_of_a_library_s_line(source: str) -> None:
    """Accelerate and Trainer call `optimizer.step()`, and the user's file constructs the optimizer."""
    edit = Edit(source, 1, 1, 1, 2, "y")
    cures = (Cure("Do it.", edits=(edit,)), Cure("Do it.", ("y = 1",)), Cure("Do it."))
    hits = [Hit(0, 0, "It waits.", LIBRARY, (Location(source, 3),), cure=cure) for cure in cures]
    own, code, text = (_cure(HostRead, [hit]).text for hit in hits)
    assert own == code == "Do it." and "library" in text


def test_of_several_hits_on_one_line_the_first_that_ran_says_from_where(source: str) -> None:
    def reads(*calls: tuple[int, str]) -> list[Op]:
        return [
            replace(_read(n, Location(source, 3), Location(source, line)), module=module)
            for n, (line, module) in enumerate(calls)
        ]

    first, then = reads((7, "a"), (9, "b")), reads((9, "c"), (7, "d"))
    (finding,) = diagnose(recording(iteration(0, first), iteration(1, then))).findings
    assert (finding.count, finding.module, finding.stack) == (2, "a", (Location(source, 7),))


def test_operators_without_a_line_are_told_apart_by_name_and_module() -> None:
    reads = [
        op(0, "aten._local_scalar_dense.default", use(1), module="a"),
        op(1, "aten._local_scalar_dense.default", use(1), module="b"),
        op(2, "aten._local_scalar_dense.default", use(1), module="b"),
    ]
    findings = diagnose(recording(iteration(0, reads))).findings
    assert [(f.module, f.count, f.location) for f in findings] == [("a", 1, None), ("b", 2, None)]


def test_an_optimizer_that_no_event_refused_is_told_by_its_flag(source: str) -> None:
    step = op(
        0, "aten._foreach_add_.Scalar", use(1), 1.0, phase="optimizer", location=Location(source, 5)
    )
    adam = OptimizerInfo("optimizer", "Adam", capturable=False, fused=False, lr_kind="float")
    (finding,) = diagnose(recording(iteration(0, [step]), optimizers=(adam,))).findings
    assert (finding.rule, finding.location) == ("GD111", Location(source, 5))
    event = RefusedOptimizer("Adam.step()", 0, Location(source, 6), class_name="Adam")
    (finding,) = diagnose(
        recording(iteration(0, [step], events=[event]), optimizers=(adam,))
    ).findings
    assert finding.location == Location(source, 6)


def test_python_data_on_a_gpu_is_told_by_the_lift_alone(source: str) -> None:
    lift = op(
        0, "aten.lift_fresh.default", use(1, 3), outputs=[use(1, 3)], location=Location(source, 4)
    )
    watched = msgspec.structs.replace(recording(iteration(0, [lift])), device="cuda")
    (finding,) = diagnose(watched).findings
    assert (finding.rule, finding.location) == ("GD105", Location(source, 4))
    assert diagnose(recording(iteration(0, [lift]))).findings == ()


def test_iterations_are_compared_among_inputs_of_equal_shapes_only(source: str) -> None:
    def run(index: int, size: int, scale: float) -> Iteration:
        location = Location(source, 3)
        multiply = op(
            0, "aten.mul.Tensor", use(index, size), scale, outputs=[use(9, size)], location=location
        )
        return iteration(index, [multiply], inputs=[Leaf("inputs[0]", use(index, size))])

    findings = diagnose(recording(run(0, 4, 1.0), run(1, 8, 2.0), run(2, 4, 1.0))).findings
    assert [finding.rule for finding in findings] == ["GD212"]
    findings = diagnose(recording(run(0, 4, 1.0), run(1, 8, 2.0), run(2, 4, 3.0))).findings
    assert [finding.rule for finding in findings] == ["GD203", "GD212"]


def test_addresses_that_settle_after_the_first_iteration_are_no_hazard(source: str) -> None:
    def run(index: int, storage: int) -> Iteration:
        location = Location(source, 3)
        read = op(
            0,
            "aten.mul.Tensor",
            use(storage, 4),
            2.0,
            outputs=[use(90 + index, 4)],
            location=location,
        )
        state = External(storage=storage, origin="state", name="model.mask", device="cuda:0")
        return iteration(index, [read], externals=[state])

    assert diagnose(recording(run(0, 1), run(1, 2), run(2, 2))).findings == ()
    (finding,) = diagnose(recording(run(0, 1), run(1, 2), run(2, 3))).findings
    assert finding.rule == "GD205"
    assert "model.mask" in finding.message


def test_numbers_that_are_not_a_number_are_alike(source: str) -> None:
    def run(index: int) -> Iteration:
        fill = op(0, "aten.fill_.Scalar", use(1, 4), float("nan"), location=Location(source, 3))
        return iteration(index, [fill])

    assert diagnose(recording(run(0), run(1))).findings == ()


def test_an_empty_recording_has_no_findings() -> None:
    assert diagnose(recording()) == Diagnosis(findings=(), hits=())
    assert diagnose(recording(iteration(0, []))).findings == ()


def test_rules_explain_others_that_exist_and_none_explains_itself_by_a_detour() -> None:
    explains = {rule.id: rule.explains for rule in ALL_RULES}
    assert {other for others in explains.values() for other in others} <= set(explains)

    def ends(rule: str, seen: frozenset[str]) -> bool:
        return rule not in seen and all(ends(o, seen | {rule}) for o in explains[rule])

    assert all(ends(rule, frozenset()) for rule in explains)


def test_an_operator_without_a_namespace_is_no_stumbling_block(source: str) -> None:
    higher_order = op(0, "flex_attention", use(1, 4), outputs=[use(2, 4)])
    assert diagnose(recording(iteration(0, [higher_order]))).findings == ()


@pytest.mark.parametrize(
    ("line", "first", "count"), [(1, 1, 4), (4, 1, 7), (5, 2, 7), (17, 14, 7), (18, 15, 6), (20, 17, 4)]
)  # fmt: skip
def test_an_excerpt_ends_with_the_file(line: int, first: int, count: int, source: str) -> None:
    found = excerpt_at(Location(source, line))
    assert found is not None
    assert (found.first_line, len(found.lines)) == (first, count)
    assert found.lines[line - first] == f"line_{line}()"


@pytest.mark.parametrize("line", [-1, 0, 21])
def test_a_line_that_is_not_there_has_no_excerpt(line: int, source: str) -> None:
    assert excerpt_at(Location(source, line)) is None


def test_places_are_counted_in_the_iteration_that_has_most(source: str) -> None:
    place = Location(source, 3)
    few, most = iteration(0, [_read(0, place)]), iteration(1, [_read(n, place) for n in range(3)])
    (found,) = diagnose(recording(few, most)).findings
    assert found.count == 3
    assert [hit.iteration for _, hit in diagnose(recording(few, most)).hits] == [0, 1, 1, 1]


def test_of_equal_effects_the_one_that_runs_first_comes_first(source: str) -> None:
    late, early = Location(source, 2), Location(source, 9)
    reads = [_read(0, early), _read(1, late), _read(2, early)]
    found = diagnose(recording(iteration(0, reads))).findings
    assert [one.location for one in found] == [early, late]


def test_what_the_machine_refuted_is_taken_out_with_the_hits_of_its_line_alone() -> None:
    here, there = Location("model.py", 3), Location("model.py", 4)
    alone = Hit(0, 1, "m", here, refused_alone=True)
    other_line, in_company = replace(alone, location=there), replace(alone, refused_alone=False)
    hits = tuple(("GD114", hit) for hit in (alone, other_line, in_company))
    found = tuple(replace(finding(place.line), location=place) for place in (here, there))
    left = Diagnosis(found, hits).without(found[:1])
    assert left.findings == found[1:]
    assert [hit for _, hit in left.hits] == [other_line, in_company]
