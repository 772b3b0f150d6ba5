"""Which calls one graph could stand for: equal but for their memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.partition.hazards import Signatures, input_signature
from graphdoctor.values.recording import Arg, Leaf, Op, Opaque
from tests.support.builders import iteration, op, tensor


def call(*args: Arg, module: str = "net", kwargs: tuple[tuple[str, Arg], ...] = ()) -> Op:
    return op("aten.some.default", [tensor(1, 4), *args], module=module, kwargs=kwargs)


def is_same(one: Op, other: Op) -> bool:
    first, second = Signatures().of(iteration([one, other]))
    return first == second


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call(), replace(call(), args=(tensor(9, 4, offset=8),))),
        (call(2), call(2)),
        (call(float("nan")), call(float("nan"))),
        (call(Opaque("<function f at 0x7f01>")), call(Opaque("<function f at 0x7f02>"))),
        (call((tensor(1, 2), 3)), call((tensor(5, 2), 3))),
        (call(), replace(call(), phase="backward", writes=(1,))),
    ],
)
def test_calls_that_differ_in_memory_alone_are_equal(one: Op, other: Op) -> None:
    assert is_same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call(), replace(call(), name="aten.other.default")),
        (call(), call(module="net.part")),
        (call(), replace(call(), args=(tensor(1, 5),))),
        (call(), replace(call(), args=(tensor(1, 4, dtype="int64"),))),
        (call(), replace(call(), args=(tensor(1, 4, device="cpu"),))),
        (call(1), call(True)),
        (call(1), call(1.0)),
        (call(0.0), call(-0.0)),
        (call((1, 2)), call((1, 3))),
        (call(kwargs=(("dim", 1),)), call(kwargs=(("dim", 2),))),
        (call(kwargs=(("dim", 1),)), call(kwargs=(("axis", 1),))),
        (call(Opaque("torch.int64")), call(Opaque("torch.int32"))),
        (call(Opaque("torch.int64")), call(Opaque("<object at 0x7f01>"))),
    ],
)
def test_calls_that_differ_in_anything_else_are_not(one: Op, other: Op) -> None:
    assert not is_same(one, other)


def test_numbers_hold_for_all_iterations_of_a_recording() -> None:
    signatures = Signatures()
    first = signatures.of(iteration([call(1), call(2)]))
    assert signatures.of(iteration([call(2), call(3), call(1)], index=1)) == (1, 2, 0)
    assert signatures.of(iteration([call(7)])) == first  # the iteration of that index is known


def test_inputs_have_the_shapes_and_numbers_that_a_graph_is_made_for() -> None:
    def inputs(*leaves: Leaf) -> tuple[object, ...]:
        return input_signature(replace(iteration([]), inputs=leaves))

    here = Leaf("inputs[0]", tensor(1, 4))
    assert inputs(here) == inputs(Leaf("inputs[0]", tensor(2, 4)))
    assert inputs(here) != inputs(Leaf("inputs[0]", tensor(1, 5)))
    assert inputs(here) != inputs(Leaf("inputs[1]", tensor(1, 4)))
    assert inputs(Leaf("n", 1)) != inputs(Leaf("n", 2))
    assert inputs(Leaf("text", "a")) == inputs(Leaf("text", "b"))
