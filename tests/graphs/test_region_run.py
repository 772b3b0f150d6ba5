"""What a region is compared by."""

from __future__ import annotations

import pytest
import torch

from graphdoctor.device.observe.operators import Call, facts_of
from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.graphs.region_run import RegionRun, RegionWatcher
from graphdoctor.values.host_events import RngState
from tests.support.builders import iteration, op


class AllOnDevice(StorageTable):
    def is_cuda(self, tensor: torch.Tensor) -> bool:
        return True


@pytest.mark.parametrize(
    "name",
    ["_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"],
)
def test_the_seeds_that_attention_returns_are_no_result_of_a_region(name: str) -> None:
    func = getattr(torch.ops.aten, name).default
    returns = [returned.name for returned in func._schema.returns]
    made = tuple(torch.rand(place + 1) for place in range(len(returns)))
    call = Call(func, facts_of(func), (), {})
    call.result = made
    run, recorded = (
        RegionRun(None, generator=torch.get_rng_state()),
        iteration([op(f"aten.{name}.default")]),
    )
    watcher = RegionWatcher(AllOnDevice(), recorded, [(0,)], [run])
    watcher.after(call)
    compared = {part[1].shape[0] - 1 for part in run.after}
    assert watcher.repeated
    assert {returns[place] for place in compared} == {
        returned for returned in returns if not returned.startswith(("philox", "debug"))
    }


def test_a_random_state_that_is_set_within_a_region_leaves_it_uncompared() -> None:
    runs = [RegionRun(None), RegionRun(None)]
    names = [op(f"aten.rand{place}.default") for place in range(4)]
    watcher = RegionWatcher(AllOnDevice(), iteration(names), [(0, 1), (2, 3)], runs)
    watcher._index = 2
    watcher.event(RngState("torch.cuda.set_rng_state()"))
    assert [run.reason for run in runs] == ["", ""]
    watcher._index = 3
    watcher.event(RngState("torch.cuda.get_rng_state()"))
    assert [run.reason for run in runs] == ["", ""]
    watcher.event(RngState("torch.cuda.set_rng_state()"))
    assert runs[0].reason == "" and "another state within it" in runs[1].reason
