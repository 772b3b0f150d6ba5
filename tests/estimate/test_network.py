"""What collectives take on the network, how much of it other work hides, and how near that is to two H200s."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import log
from pathlib import Path
from statistics import fmean

import pytest
from msgspec.structs import replace

from graphdoctor.estimate import estimate, op_cost
from graphdoctor.estimate.gpus import DeviceProfile, figures, load_profile, profile_names
from graphdoctor.estimate.network import exposed_us, network_us
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import Exchange, Iteration, Op
from tests.support.builders import iteration, op, tensor

H200 = load_profile("h200")
MEASURED = Path(__file__).resolve().parents[2] / "benchmarks/data/network_2xh200_torch2.11.json"
NAMES = {
    "all_reduce": "c10d.allreduce_.default",
    "all_gather": "c10d._allgather_base_.default",
    "reduce_scatter": "c10d._reduce_scatter_base_.default",
    "broadcast": "c10d.broadcast_.default",
    "all_to_all": "c10d.alltoall_base_.default",
}
MB = 250_000  # numbers of 4 bytes


def collective(
    storage: int = 1,
    numel: int = MB,
    *,
    name: str = "all_reduce",
    ranks: int = 2,
    is_beside: bool = True,
) -> Op:
    use = tensor(storage, numel)
    made = op(NAMES[name], [(use,)], [use], writes=[storage])
    return replace(made, exchange=Exchange(ranks, is_beside))


def relu(storage: int, numel: int = 40 * MB) -> Op:
    return op("aten.relu.default", [tensor(storage, numel)], [tensor(storage + 1000, numel)])


def step(*ops: Op) -> Iteration:
    return iteration(ops)


def exposed(ops: Iterable[Op], profile: DeviceProfile = H200) -> list[float]:
    every = iteration(ops).ops
    found = exposed_us(every, lambda one: op_cost(one, profile).device_us, profile)
    return [us.mid for us in found.values()]


def without_hindrance() -> DeviceProfile:
    none = replace(H200.network.hindrance, low=0.0, mid=0.0, high=0.0)
    return replace(H200, network=replace(H200.network, hindrance=none))


def test_each_gpu_says_what_its_links_carry_and_from_where_that_is_known() -> None:
    for name in profile_names():
        for path, figure in figures(load_profile(name).network):
            assert 0 < figure.low <= figure.mid <= figure.high, (name, path)
            assert len(figure.source) > 20, (name, path)


def test_collectives_between_two_gpus_are_near_what_they_took() -> None:
    rows = json.loads(MEASURED.read_text())["rows"]
    assert len(rows) == 55
    errors, inside = [], 0
    for row in rows:
        found = network_us(collective(numel=row["bytes"] // 4, name=row["collective"]), H200)
        inside += found.low <= row["graph_us"] <= found.high
        errors.append(abs(log(found.mid / row["graph_us"])))
    assert inside >= 0.9 * len(rows)
    assert fmean(errors) < 0.09
    assert max(errors) < 0.3


def test_the_data_of_an_all_reduce_go_round_twice_and_those_of_a_gather_once() -> None:
    large = 1000 * MB

    def took(name: str, ranks: int) -> float:
        return network_us(collective(numel=large, name=name, ranks=ranks), H200).mid

    assert took("all_reduce", 8) / took("all_reduce", 2) == pytest.approx(1.75, rel=0.02)
    assert took("all_gather", 8) / took("all_gather", 2) == pytest.approx(1.75, rel=0.02)
    assert took("broadcast", 8) / took("broadcast", 2) == pytest.approx(1.0, rel=0.02)
    small = [network_us(collective(numel=2, ranks=ranks), H200).mid for ranks in (2, 4, 8)]
    assert small == sorted(small)
    assert small[0] < small[2]


def test_a_rank_alone_sends_nothing() -> None:
    alone = network_us(collective(numel=1000 * MB, ranks=1), H200)
    assert alone == H200.smallest_kernel_us.stream.range
    assert not any("collective" in note for note in estimate(step(collective(ranks=1)), H200).notes)


def test_slower_links_make_a_collective_take_longer() -> None:
    large = collective(numel=100 * MB)
    assert network_us(large, load_profile("t4")).mid > 10 * network_us(large, H200).mid


def test_work_that_needs_no_result_hides_a_collective_and_takes_longer_beside_it() -> None:
    reduce, work = collective(), [relu(7), relu(8), relu(9)]
    alone = network_us(reduce, H200).mid
    assert exposed([reduce, *work], without_hindrance()) == [0.0]
    assert exposed([reduce, *work]) == [pytest.approx(0.5 * alone)]


@pytest.mark.parametrize(
    ("ops", "waits"),
    [
        ([collective(is_beside=False), relu(7)], 1.0),  # waited for at once
        ([collective(), relu(1, MB), relu(7)], 1.0),  # its result is needed next
        ([relu(7), collective()], 1.0),  # the step's end
        ([collective(), op("aten.view.default", [tensor(1, MB)], [tensor(1, MB)]), relu(7)], 0.0),
        ([collective(), op("_c10d_functional.wait_tensor.default", [tensor(1, MB)]), relu(7)], 1.0),
    ],
)
def test_what_needs_a_result_waits_for_it(ops: list[Op], waits: float) -> None:
    alone = network_us(collective(), H200).mid
    assert exposed(ops, without_hindrance()) == [pytest.approx(waits * alone)]


def test_collectives_run_one_after_the_other() -> None:
    both = exposed([collective(1), collective(2)], without_hindrance())
    assert sum(both) == pytest.approx(2 * network_us(collective(), H200).mid)


def test_a_step_is_longer_by_what_nothing_hides_and_says_what_the_network_takes() -> None:
    work = [relu(7), relu(8)]
    without, beside, after = (
        estimate(step(*ops), H200)
        for ops in (work, [collective(numel=25 * MB), *work], [*work, collective(numel=25 * MB)])
    )
    assert without.graph_us.mid < beside.graph_us.mid < after.graph_us.mid
    (note,) = [note for note in after.notes if "collective" in note]
    assert "1 collective between 2 GPUs, taken to be of one host" in note
    assert any(term.name.startswith("links") for term in after.terms)
    assert not any("collective" in note for note in without.notes)


def test_ranges_keep_their_order() -> None:
    found = exposed_us(
        step(collective(), relu(7), collective(2, is_beside=False)).ops,
        lambda one: op_cost(one, H200).device_us,
        H200,
    )
    for us in found.values():
        assert isinstance(us, Range)
        assert us.low <= us.mid <= us.high
