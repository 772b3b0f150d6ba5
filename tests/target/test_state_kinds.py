"""A snapshot puts each kind of object back, however the step reaches it."""

from __future__ import annotations

import functools
import queue
import random
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import ModuleType

import numpy
import pytest
import torch
from torch import nn

from graphdoctor.target.state.saved_tensor import SavedStorage
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, snapshot
from graphdoctor.target.state.walk import Walk

torch.set_num_threads(1)


def test_aliases_share_one_copy_and_one_restore() -> None:
    base = torch.arange(10.0)
    roots = {"a": base[2:5], "b": base[::2], "base": base}
    saved = snapshot(roots)
    base.zero_()
    saved.restore()
    assert base.tolist() == list(range(10)) and roots["b"].tolist() == [0, 2, 4, 6, 8]


def test_no_tensor_is_printed_to_put_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory may be freed: some releases of torch print what a call of theirs refuses."""
    weight = torch.ones(2)
    state = {"weight": weight, "many": {str(place): torch.ones(1) for place in range(40)}}
    saved = snapshot(state)
    weight.mul_(3)
    printed: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda tensor: printed.append(tensor) or "")
    saved.restore()
    assert not printed
    assert weight.tolist() == [1, 1] and weight._version == 0


def test_a_graph_from_before_still_runs_backward_afterwards() -> None:
    weight = nn.Parameter(torch.ones(2))
    loss = (weight * weight).sum()
    saved = snapshot({"weight": weight})
    with torch.no_grad():
        weight.mul_(3)
    saved.restore()
    loss.backward()
    assert weight.grad is not None and weight.grad.tolist() == [2, 2]


def test_closures_partials_defaults_and_bound_methods_are_reached() -> None:
    count, buffer = 0, torch.zeros(2)
    options = {"scale": 1.0}

    class Trainer:
        def __init__(self) -> None:
            self.losses: list[float] = []

        def step(self, memory: list[int], extra: dict[str, int] = {"n": 0}) -> None:  # noqa: B006
            nonlocal count
            count += 1
            extra["n"] += 1
            buffer.add_(1)
            memory.append(1)
            options["scale"] *= 2
            self.losses.append(1.0)

    trainer, memory = Trainer(), [0]
    step = functools.partial(trainer.step, memory)
    saved = snapshot({"step": step})
    step()
    assert (count, memory, options["scale"]) == (1, [0, 1], 2.0)
    saved.restore()
    assert (count, memory, options, trainer.losses) == (0, [0], {"scale": 1.0}, [])
    assert buffer.tolist() == [0, 0] and Trainer.step.__defaults__ == ({"n": 0},)


def test_generators_of_the_users_own_are_put_back() -> None:
    owned = {
        "python": random.Random(1),
        "torch": torch.Generator().manual_seed(1),
        "numpy": numpy.random.default_rng(1),
        "older": numpy.random.RandomState(1),
        "array": numpy.arange(3.0),
    }

    def draws() -> list[object]:
        owned["array"] += 1
        return [
            owned["python"].random(),
            torch.rand(1, generator=owned["torch"]).item(),
            owned["numpy"].random(),
            owned["older"].normal(),
            owned["array"].tolist(),
        ]

    saved = snapshot(owned)
    first = draws()
    assert draws() != first
    saved.restore()
    assert draws() == first


def test_a_running_iterator_is_named_as_a_limit() -> None:
    saved = snapshot({"holder": {"batches": (n for n in range(3))}})
    assert any("holder.batches" in limit for limit in saved.limits)


def test_meta_sparse_and_empty_tensors_do_no_harm() -> None:
    sparse = torch.eye(3).to_sparse()
    roots = {"meta": torch.empty(3, device="meta"), "sparse": sparse, "empty": torch.empty(0)}
    saved = snapshot(roots)
    sparse.mul_(2)
    saved.restore()
    assert torch.equal(sparse.to_dense(), torch.eye(3))


@pytest.mark.parametrize("to_layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_a_sparse_tensor_is_put_back_in_its_own_memory(to_layout: str) -> None:
    sparse = getattr(torch.eye(3), to_layout)()
    held = (
        sparse.values().data_ptr() if to_layout != "to_sparse_coo" else sparse._values().data_ptr()
    )
    saved = snapshot({"sparse": sparse})
    sparse.mul_(2)
    saved.restore()
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert (
        sparse.values() if to_layout != "to_sparse_coo" else sparse._values()
    ).data_ptr() == held


def test_whether_a_sparse_tensor_is_coalesced_is_put_back() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.ones(2), (3,), is_coalesced=False
    )
    saved = snapshot({"sparse": sparse})
    sparse._coalesced_(True)
    saved.restore()
    assert not sparse.is_coalesced()


@pytest.mark.parametrize(("threads", "left"), [(1, [1]), (2, [1, 2])])
def test_a_queue_is_put_back_where_no_other_thread_uses_it(
    threads: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = queue.Queue[int]()
    waiting.put(1)
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    saved = snapshot({"waiting": waiting})
    waiting.put(2)
    saved.restore()
    assert list(waiting.queue) == left


def test_a_tensor_made_of_tensors_is_put_back_through_them() -> None:
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    both = two_tensor.TwoTensor(torch.ones(2), torch.zeros(2))
    saved = snapshot({"both": nn.Parameter(both)})
    both.add_(1)
    saved.restore()
    assert both.a.tolist() == [1, 1] and both.b.tolist() == [0, 0]


def test_a_gradient_scaler_is_put_back() -> None:
    scaler = torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    saved = snapshot({"scaler": scaler, "optimizer": optimizer})
    before = scaler.state_dict()
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert "scaler._scale" in named_tensors({"scaler": scaler}) and scaler.state_dict() != before
    saved.restore()
    assert scaler._scale is None and scaler.state_dict() == before and weight.grad is None


def test_ordered_and_default_dicts_keep_kind_and_order() -> None:
    ordered, default = OrderedDict(a=1, b=2), defaultdict(list, x=[1])
    saved = snapshot({"o": ordered, "d": default})
    ordered.move_to_end("a")
    default["y"].append(1)
    saved.restore()
    assert list(ordered) == ["a", "b"] and dict(default) == {"x": [1]}
    assert default.default_factory is list


def test_two_variables_of_one_name_are_both_named() -> None:
    def make(value: float) -> Callable[[], torch.Tensor]:
        state = torch.tensor([value])
        return lambda: state

    names = named_tensors({"first": make(1.0), "second": make(2.0)})
    assert sorted(tensor.item() for tensor in names.values()) == [1.0, 2.0]


def test_a_deep_chain_is_no_recursion_and_a_cycle_no_loop() -> None:
    head: list[object] = []
    chain: list[object] = head
    for _ in range(20_000):
        chain.append([])
        chain = chain[-1]  # type: ignore[assignment]
    chain.append(head)
    saved = snapshot({"head": head})
    chain.clear()
    saved.restore()
    assert chain == [head] or chain[0] is head


def test_values_and_bytes_are_put_back_from_inside_and_outside_the_emulated_device() -> None:
    from graphdoctor.device.emulated import EmulatedDevice

    with EmulatedDevice():
        model = nn.Linear(2, 2).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        before = [parameter.detach().cpu().tolist() for parameter in model.parameters()]
        saved = snapshot({"model": model, "optimizer": optimizer})
        for leave_inside in (True, False):
            model(torch.ones(1, 2, device="cuda")).sum().backward()
            optimizer.step()
            assert [p.detach().cpu().tolist() for p in model.parameters()] != before
            if leave_inside:
                saved.restore()
                assert model.weight.is_cuda
    saved.restore()
    assert [parameter.detach().tolist() for parameter in model.parameters()] == before
    assert model.weight.grad is None and not optimizer.state


def _held(one: Snapshot) -> list[object]:
    return [getattr(restore, "__self__", None) for restore in one._saved]


def test_snapshots_share_the_copy_of_memory_that_did_not_change() -> None:
    frozen, trained = torch.arange(5.0), torch.zeros(3)
    roots = {"frozen": frozen, "trained": trained}
    first = snapshot(roots)
    trained += 1
    second = snapshot(roots)
    copies = [
        {id(held._copy) for held in _held(one) if isinstance(held, SavedStorage)}
        for one in (first, second)
    ]
    assert len(copies[0] & copies[1]) == 1 and len(copies[0] | copies[1]) == 3
    frozen.fill_(-1), trained.fill_(-1)
    second.restore()
    assert frozen.tolist() == [0, 1, 2, 3, 4] and trained.tolist() == [1, 1, 1]
    first.restore()
    assert frozen.tolist() == [0, 1, 2, 3, 4] and trained.tolist() == [0, 0, 0]


def test_a_snapshot_shares_no_copy_of_bytes_that_only_compare_equal() -> None:
    zero = torch.zeros(3)
    first = snapshot({"zero": zero})
    zero.fill_(-0.0)
    second = snapshot({"zero": zero})
    first.restore()
    assert not zero.signbit().any()
    second.restore()
    assert zero.signbit().all()


def test_an_arrays_values_and_shape_are_put_back() -> None:
    table = numpy.ones((2, 3))
    before = snapshot({"held": [table]})
    table.fill(2)
    table.shape = (6,)
    before.restore()
    assert table.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_an_array_of_another_length_keeps_nothing_else_from_being_put_back() -> None:
    table, count = numpy.ones(4), {"n": 0}
    before = snapshot({"held": [table, count]})
    table.resize(8, refcheck=False)
    count["n"] = 1
    before.restore()
    assert count == {"n": 0}


def paths_to(monitor: threading.Thread) -> set[str]:
    return {str(visit.path) for visit in Walk({"monitor": monitor})}


def test_what_a_running_thread_of_a_package_notes_of_itself_is_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As tqdm's monitor does, which writes the time into itself ten times a second."""

    class Monitor(threading.Thread):
        woken = 0.0

    ends = threading.Event()
    monitor = Monitor(target=ends.wait, daemon=True)
    monitor.woken = 1.0
    module = ModuleType("package")
    module.__file__ = "/env/lib/python3/site-packages/package/monitor.py"
    monkeypatch.setitem(sys.modules, "package", module)
    assert "monitor.woken" in paths_to(monitor)  # a user's own, or at rest
    monkeypatch.setattr(Monitor, "__module__", "package")
    monitor.start()
    try:
        assert "monitor.woken" not in paths_to(monitor)
    finally:
        ends.set()
        monitor.join()
