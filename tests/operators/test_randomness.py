"""Which operator calls draw random numbers: the table beside torch's own schemas, and in what trusts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from msgspec.structs import replace

from graphdoctor.operators import call_draws, draws
from graphdoctor.rules.capture_dependent_result import other_draws
from graphdoctor.rules.repeated_seed import RepeatedSeed
from graphdoctor.rules.rule import Hit
from graphdoctor.values.host_events import RngState
from graphdoctor.values.recording import Op, Recording
from tests.support.builders import iteration, op, tensor

_TAG = torch.Tag.nondeterministic_seeded
# Not operators of a step on CUDA: a state that is made once, another device, and what is handed a seed.
_OTHERS = ("_backward", "_mask_", "_sdp_choice", "_init_dropout_state", "_mps")
_SWITCHES = ("dropout_p", "dropout", "train", "training")


def switched() -> Iterator[tuple[torch._ops.OpOverload, int, str]]:
    """Every operator of torch with the tag and an argument that turns the drawing off."""
    schemas = torch._C._jit_get_all_schemas()  # dir(torch.ops.aten) lists what was used so far
    for name in sorted({s.name[6:] for s in schemas if s.name.startswith("aten::")}):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            func = getattr(packet, overload)
            if _TAG in func.tags and not name.endswith(_OTHERS):
                for place, argument in enumerate(func._schema.arguments):
                    if argument.name in _SWITCHES:
                        yield func, place, argument.name


@pytest.mark.parametrize(("func", "place", "name"), list(switched()), ids=lambda value: str(value))
def test_the_table_knows_where_drawing_is_turned_off(func, place: int, name: str) -> None:
    arguments = func._schema.arguments
    on = [0.5] * len(arguments)
    off = [*on[:place], 0.0 if name.startswith("dropout") else False, *on[place + 1 :]]
    assert call_draws(str(func), on, {})
    assert not call_draws(str(func), off, {})
    named = {each.name: value for each, value in zip(arguments, off, strict=True)}
    assert not call_draws(str(func), (), named)
    left_out = {each: value for each, value in named.items() if each != name}
    if arguments[place].has_default_value():
        assert call_draws(str(func), (), left_out) == bool(arguments[place].default_value)


def test_attention_without_dropout_draws_nothing_and_its_backward_never_does() -> None:
    assert not draws(attention("_scaled_dot_product_flash_attention"))
    assert draws(attention("_scaled_dot_product_flash_attention", dropout_p=0.1))
    assert not draws(attention("_scaled_dot_product_efficient_attention_backward", dropout_p=0.1))
    assert not draws(op("aten.rand.default", [(8,)], [tensor(1, 8)]))  # without the tag
    assert draws(op("aten.rand.default", [(8,)], [tensor(1, 8)], tags=["nondeterministic_seeded"]))


def attention(name: str, **kwargs: float) -> Op:
    made = [tensor(at, 2, 4, 8, 16) for at in (1, 2, 3)]
    return op(
        f"aten.{name}.default",
        made,
        [tensor(4, 2, 4, 8, 16)],
        kwargs=tuple(kwargs.items()),
        tags=["nondeterministic_seeded"],
    )


def drop(rate: float = 0.1, size: int = 8, device: str = "cuda:0") -> Op:
    taken, made = tensor(1, size, device=device), tensor(2, size, device=device)
    tags = ["nondeterministic_seeded"]
    return op("aten.native_dropout.default", [taken, rate, True], [made], tags=tags)


def plain() -> Op:
    return op("aten.sin.default", [tensor(1, 8)], [tensor(2, 8)])


def parted(eager: list[Op], captured: list[Op]) -> tuple[set[int], set[int]]:
    one, other = other_draws(iteration(eager), iteration(captured, capturing=True))
    return set(one), set(other)


def test_equal_draws_in_equal_order_are_the_same_numbers() -> None:
    assert parted([drop(), plain(), drop()], [plain(), drop(), drop()]) == (set(), set())


def test_from_the_first_draw_on_that_differs_all_do() -> None:
    assert parted([drop(), drop(0.2), drop()], [drop(), drop(), plain(), drop()]) == (
        {1, 2},
        {1, 3},
    )
    assert parted([drop(), plain()], [drop(size=4), plain()]) == ({0}, {0})
    assert parted([drop()], [drop(), drop()]) == (set(), {1})


def test_another_kernel_of_attention_draws_otherwise_only_where_it_drops() -> None:
    flash, efficient = (
        f"_scaled_dot_product_{kernel}_attention" for kernel in ("flash", "efficient")
    )
    assert parted([attention(flash)], [attention(efficient)]) == (set(), set())
    both = attention(flash, dropout_p=0.1), attention(efficient, dropout_p=0.1)
    assert parted([both[0]], [both[1]]) == ({0}, {0})


def test_the_host_s_generator_shifts_nothing_on_the_device() -> None:
    assert parted([drop()], [drop(device="cpu"), drop()]) == (set(), {0})


def test_a_seed_before_attention_that_drops_nothing_repeats_nothing() -> None:
    seeding = RngState("torch.manual_seed()", 0, seed=0)

    def hits(rate: float) -> list[Hit]:
        drawing = attention("_scaled_dot_product_flash_attention", dropout_p=rate)
        captured = replace(iteration([drawing], capturing=True), events=(seeding,))
        return list(RepeatedSeed().check(Recording("cuda", "training", (), (captured,))))

    assert hits(0.0) == []
    assert len(hits(0.1)) == 1
