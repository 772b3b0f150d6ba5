"""What the host learns from operators, and where it waits for the device."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.operators import host_learns, host_waits, transfer_of, waiting_backwards
from graphdoctor.values.recording import Arg, Op
from tests.support.builders import iteration, op, tensor

HOST, DEVICE, NUMBER = tensor(1, 4, device="cpu"), tensor(2, 4), tensor(3)
MASK, PLACES = tensor(4, 4, dtype="bool"), tensor(5, 2, dtype="int64")
HOST_PLACES = tensor(6, 2, dtype="int64", device="cpu")


def named(name: str, *args: Arg, tags: tuple[str, ...] = (), **kwargs: Arg) -> Op:
    return op(f"aten.{name}", args, [DEVICE], kwargs=tuple(kwargs.items()), tags=tags)


@pytest.mark.parametrize(
    ("made", "learned"),
    [
        (named("_local_scalar_dense.default", NUMBER), "value"),
        (named("equal.default", DEVICE, tensor(9, 4)), "value"),
        (named("equal.default", DEVICE, DEVICE, tags=("data_dependent_output",)), ""),
        (named("nonzero.default", DEVICE), "size"),
        (named("index.Tensor", DEVICE, (MASK,)), "size"),
        (named("index.Tensor", DEVICE, (PLACES,), tags=("dynamic_output_shape",)), ""),
        (named("repeat_interleave.Tensor", PLACES, output_size=8), ""),
        (named("one_hot.default", PLACES, tags=("dynamic_output_shape",)), ""),
        (op("mine.rows.default", [DEVICE], tags=("dynamic_output_shape",)), "size"),
        (op("mine.best.default", [DEVICE], tags=("data_dependent_output",)), "value"),
        (named("add.Tensor", DEVICE, DEVICE), ""),
    ],
)
def test_the_host_learns_a_value_or_a_size(made: Op, learned: str) -> None:
    assert host_learns(made) == learned


@pytest.mark.parametrize(
    ("made", "waits"),
    [
        (named("_local_scalar_dense.default", NUMBER), True),
        (named("nonzero.default", DEVICE), True),
        (named("linalg_lstsq.default", DEVICE, DEVICE), True),  # a row of the table alone
        (named("normal.Tensor_Tensor", DEVICE, DEVICE), True),
        (named("_ctc_loss.default", DEVICE, PLACES), True),  # copies its lengths
        (named("index.Tensor", DEVICE, (PLACES,)), False),
        (named("index.Tensor", DEVICE, (HOST_PLACES,)), True),
        (named("index.Tensor", DEVICE, (MASK,)), True),
        (op("aten._to_copy.default", [DEVICE], [HOST]), True),
        (op("aten._to_copy.default", [DEVICE], [HOST], kwargs=(("non_blocking", True),)), False),
        (op("aten._to_copy.default", [DEVICE], [HOST], kwargs=(("non_blocking", False),)), True),
        (op("aten.copy_.default", [DEVICE, HOST], [DEVICE], writes=[2]), True),
        (op("aten.copy_.default", [DEVICE, HOST, True], [DEVICE], writes=[2]), False),
        (op("aten.copy_.default", [DEVICE, tensor(5, 4)], [DEVICE], writes=[2]), False),
        (op("aten._to_copy.default", [tensor(7, 0)], [tensor(8, 0, device="cpu")]), False),
        (op("aten.nonzero.default", [HOST], [HOST]), False),  # on the CPU
        (named("mul.Tensor", DEVICE, DEVICE), False),
    ],
)
def test_the_host_waits(made: Op, waits: bool) -> None:
    assert host_waits(made) is waits


def test_a_copy_tells_its_direction_and_an_index_is_a_hidden_one() -> None:
    up = transfer_of(op("aten.copy_.default", [DEVICE, HOST], [DEVICE], writes=[2]))
    down = transfer_of(op("aten._to_copy.default", [DEVICE], [HOST]))
    inside = transfer_of(named("index.Tensor", DEVICE, (HOST_PLACES,)))
    assert up is not None and (up.to_device, up.hidden, up.source) == (True, False, HOST)
    assert down is not None and not down.to_device
    assert inside is not None and (inside.to_device, inside.hidden) == (True, True)


def test_the_backward_of_a_product_waits_once_at_its_first_operator() -> None:
    forward = named("cumprod.default", DEVICE)
    first, second = (op(f"aten.{name}", [DEVICE], [DEVICE], phase="backward") for name in "ab")
    made = iteration([forward, named("sum.default", DEVICE), first, second])
    linked = [made.ops[0], made.ops[1], *(_of(each, 0) for each in made.ops[2:])]
    assert [(each.index, of.index) for each, of in waiting_backwards(linked)] == [(2, 0)]
    other = [made.ops[0], made.ops[1], *(_of(each, 1) for each in made.ops[2:])]
    assert not list(waiting_backwards(other))


def _of(backward: Op, forward: int) -> Op:
    return replace(backward, forward_index=forward)
