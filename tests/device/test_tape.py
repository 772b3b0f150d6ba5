"""What a replay makes anew, and what it fills: the memory that somebody holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.made_anew import FromEntry, Made
from graphdoctor.device.observe.storages import Geometry, StorageTable
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
