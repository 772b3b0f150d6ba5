"""What a replay makes anew, and what it fills: the memory that somebody holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.storages import Geometry, StorageTable
from graphdoctor.device.observe.tape import FromEntry, Made
from tests.support.emulated import captured, device

__all__ = ["device"]
SIZE = 1024
BYTES = SIZE * SIZE * 4


def alive(table: StorageTable) -> int:
    """How many storages of this size anybody holds."""
    storages = (info.storage() for info in table._infos.values())
    return sum(storage is not None and storage.nbytes() == BYTES for storage in storages)


def test_intermediate_values_are_held_neither_after_a_capture_nor_after_a_replay(
    device: EmulatedDevice,
) -> None:
    x = torch.randn(SIZE, SIZE).cuda()
    before = alive(device.table)

    def body() -> torch.Tensor:
        y = x
        for _ in range(8):
            y = (y * 1.5).tanh()
        return y.sum()

    graph, y = captured(body)
    assert alive(device.table) == before
    expected = y.clone()
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected) and alive(device.table) == before


def parts(x: torch.Tensor) -> torch.Tensor:
    one, other = (x * 2).chunk(2, dim=1)
    return one.t().contiguous() + other[1:].sum()


def written_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1].mul_(3)
    y.t()[0].add_(x[0, 0])
    return y + 0


def lists(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return torch.cat([y, x * y, y[:1]]) * torch.stack([x, y])[1, 0]


def several_results(x: torch.Tensor) -> torch.Tensor:
    values, places = x.sort(dim=1)
    return values.gather(1, places) + torch.var_mean(x)[1]


def filled_memory(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y.copy_(x * 2)
    return y.exp()


def turned_twice(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t_()
    z = y + x
    y.t_()
    return y @ z


def squeezed_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.sum(1, keepdim=True)
    y.squeeze_(1)
    return x + y


BODIES = [
    parts,
    written_in_place,
    lists,
    several_results,
    filled_memory,
    turned_twice,
    squeezed_in_place,
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("body", BODIES)
def test_a_replay_computes_from_what_it_made_itself(
    body: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(6, 6).cuda()
    graph, y = captured(lambda: body(x))
    for _ in range(2):
        x.copy_(torch.randn(6, 6))
        graph.replay()
        assert torch.equal(y, body(x))


@pytest.fixture
def halves() -> Iterator[Callable[[torch.Tensor], list[torch.Tensor]]]:
    """An operator that makes two results in one memory."""
    with torch.library._scoped_library("graphdoctor_tests", "FRAGMENT") as library:
        library.define("halves(Tensor x) -> (Tensor, Tensor)")

        def made(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x * 2).chunk(2)

        library.impl("halves", made, "CPU")
        yield torch.ops.graphdoctor_tests.halves


@pytest.mark.usefixtures("device")
def test_two_results_in_one_memory_are_both_the_replay_s(
    halves: Callable[[torch.Tensor], list[torch.Tensor]],
) -> None:
    x = torch.randn(6).cuda()
    graph, (one, other) = captured(lambda: halves(x))
    x.fill_(3)
    graph.replay()
    assert torch.cat([one, other]).tolist() == [6.0] * 6


@pytest.mark.usefixtures("device")
def test_a_value_that_somebody_holds_is_the_replay_s() -> None:
    x, held = torch.randn(6).cuda(), []

    def body() -> torch.Tensor:
        held.append((x * 2)[2:])
        return held[0] + 1

    graph, y = captured(body)
    x.fill_(3)
    graph.replay()
    assert held[0].tolist() == [6.0] * 4 and y.tolist() == [7.0] * 4


@pytest.fixture
def operators() -> Iterator[Any]:
    """Makes operators of Python functions, by their schemas."""
    with torch.library._scoped_library("graphdoctor_tests", "FRAGMENT") as library:

        def make(schema: str, body: Callable[..., Any]) -> Any:
            library.define(schema)
            name = schema.partition("(")[0]
            library.impl(name, body, "CPU")
            return getattr(torch.ops.graphdoctor_tests, name)

        yield make


@pytest.mark.usefixtures("device")
def test_a_replay_gives_back_what_it_made_after_its_last_use(
    operators: Callable[..., Any],
) -> None:
    given: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        given.append(weakref.ref(x))
        alive.append(sum(seen() is not None for seen in given))
        return x + 1

    counted = operators("counted(Tensor x) -> Tensor", counting)
    x = torch.ones(4).cuda()

    def body() -> torch.Tensor:
        y = x
        for _ in range(8):
            y = counted(y)
        return y

    graph, y = captured(body)
    given.clear()
    alive.clear()
    graph.replay()
    assert y.tolist() == [9.0] * 4 and len(alive) == 8 and max(alive) <= 3


@pytest.mark.usefixtures("device")
def test_an_operator_that_returns_what_an_earlier_one_made_leaves_that_one_its_memory(
    operators: Callable[..., Any],
) -> None:
    x, held = torch.randn(6).cuda(), []
    kept = operators("kept(Tensor x) -> Tensor", lambda x: held[0])

    def body() -> torch.Tensor:
        held.append(x * 2)
        y = held[0] + 1
        kept(x)
        return y

    graph, y = captured(body)
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [7.0] * 6 and held[0].tolist() == [6.0] * 6


@pytest.mark.usefixtures("device")
def test_a_number_on_the_host_is_an_argument_that_no_replay_changes() -> None:
    """Also where a copy of the replay's own fills it: a kernel took its value when it was captured."""
    x = torch.ones(4).cuda()

    def body() -> torch.Tensor:
        total = x.sum().to("cpu", non_blocking=True)
        return x * total

    graph, y = captured(body)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [8.0] * 4


@pytest.mark.usefixtures("device")
def test_zeros_without_memory_are_filled_by_no_replay() -> None:
    x = torch.ones(4).cuda()
    graph, y = captured(lambda: x + torch._efficientzerotensor(4, device="cuda"))
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [2.0] * 4


@pytest.mark.usefixtures("device")
def test_memory_that_a_capture_only_allocates_keeps_what_somebody_writes_there() -> None:
    x = torch.ones(4).cuda()

    def body() -> torch.Tensor:
        y = torch.empty(4, device="cuda")
        y[:2].copy_(x[:2])
        return y

    graph, y = captured(body)
    y.fill_(7)
    graph.replay()
    assert y.tolist() == [1.0, 1.0, 7.0, 7.0]


# Of an operator of this name the last result stays on the host, as attention's random seed does in eager.
BESIDE = "_pack_padded_sequence(Tensor x) -> (Tensor, Tensor)"
BESIDE_ONLY = "_pack_padded_sequence(Tensor x) -> Tensor[]"


@pytest.mark.usefixtures("device")
def test_a_result_on_the_host_is_the_replay_s_for_its_own_operators_and_nobody_else_s(
    operators: Callable[..., Any],
) -> None:
    x, held = torch.ones(4).cuda(), []
    beside = operators(BESIDE, lambda x: (x + 1, x.sum().reshape(1)))
    uses = operators("uses(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y)

    def body() -> torch.Tensor:
        y, on_host = beside(x)
        held.append(on_host)
        return uses(y, on_host)

    graph, y = captured(body)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [24.0] * 4
    assert held[0].tolist() == [4.0] and not held[0].is_cuda


@pytest.mark.usefixtures("device")
def test_an_operator_that_leaves_nothing_on_the_device_is_not_replayed(
    operators: Callable[..., Any],
) -> None:
    x, runs = torch.ones(4).cuda(), []

    def on_host(x: torch.Tensor) -> list[torch.Tensor]:
        runs.append(x)
        return [x.sum().reshape(1)]

    beside = operators(BESIDE_ONLY, on_host)

    def body() -> torch.Tensor:
        beside(x)
        return x + 1

    graph, y = captured(body)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3.0] * 4 and len(runs) == 1


def test_a_result_of_another_shape_is_refused() -> None:
    table = StorageTable()
    then = torch.zeros(4)
    made = Made(0, None, table.info(then), Geometry.of_tensor(then), is_on_device=True)
    assert made.of(torch.ones(4)).tolist() == [1.0] * 4
    with pytest.raises(RuntimeError, match=r"shape \(3,\), and had \(4,\)"):
        made.of(torch.ones(3))
    table.close()


def test_a_result_that_lies_otherwise_is_laid_out_as_it_was() -> None:
    table = StorageTable()
    then = torch.zeros(2, 3)
    made = Made(0, 1, table.info(then), Geometry.of_tensor(then), is_on_device=True)
    found = made.of((None, torch.arange(6.0).view(3, 2).t()))
    assert found.stride() == (3, 1) and found.tolist() == [[0, 2, 4], [1, 3, 5]]
    table.close()


def test_a_part_of_a_result_is_that_part_wherever_a_replay_makes_it() -> None:
    table = StorageTable()
    then = torch.zeros(8)[2:6]
    made = Made(0, None, table.info(then), Geometry.of_tensor(then), is_on_device=True)
    part = FromEntry(made, Geometry.of_tensor(then[1:]))
    assert part.of({made.key: torch.arange(4.0)}).tolist() == [1.0, 2.0, 3.0]
    table.close()


@pytest.mark.usefixtures("device")
def test_memory_that_a_step_frees_is_there_again_when_the_next_replay_begins() -> None:
    x = torch.randn(6, 6).cuda()

    def body() -> torch.Tensor:
        y = x * 2
        z = y.sum()
        y.untyped_storage().resize_(0)
        return z

    graph, z = captured(body)
    for _ in range(2):
        x.copy_(torch.randn(6, 6).cuda())
        graph.replay()
        assert torch.equal(z, (x * 2).sum())
