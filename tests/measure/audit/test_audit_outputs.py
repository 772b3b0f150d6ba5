"""Outputs that a later replay overwrote are reported with the line that kept them; copied outputs are not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cudagraph_trees as trees

import graphdoctor
from graphdoctor.device.emulated import entered
from graphdoctor.measure.audit import places
from graphdoctor.measure.audit.places import VariablesWalk
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.locations import Location
from tests.measure.audit.healthy_graphs import batch, model
from tests.support.emulated import captured


def graphed() -> Any:
    return torch.cuda.make_graphed_callables(model(), (batch(),))


def audited(program: Callable[[], object]) -> AuditReport:
    with graphdoctor.audit() as found:
        program()
    return found.report()


class Engine:
    """Decodes with a graph, weights that are synced in place and a paged cache."""

    def __init__(self) -> None:
        self.net, self.token = model(), batch()
        self.pages = torch.zeros(8, 4, device="cuda")
        self.slots = torch.arange(2, device="cuda")
        with torch.no_grad():
            self.graph, self.logits = captured(self._forward)
        self.kept: list[torch.Tensor] = []

    def _forward(self) -> torch.Tensor:
        self.pages.index_copy_(0, self.slots, self.net(self.token))
        return self.pages[self.slots] + 1

    def sync(self) -> None:
        with torch.no_grad():
            for each in self.net.parameters():
                each.copy_(torch.zeros_like(each))

    def step(self) -> torch.Tensor:
        self.graph.replay()
        return self.logits[:1]


def list_of_the_static_loss() -> None:
    x, losses = batch(), []
    graph, static_loss = captured(lambda: (x * 2).sum())
    for _ in range(4):
        graph.replay()
        losses.append(static_loss)  # <- kept


def list_of_detached_results() -> None:
    call, outputs = graphed(), []
    for value in range(4):
        outputs.append(call(batch(float(value))).detach())  # <- kept


def engine_that_keeps_logits() -> None:
    engine = Engine()
    for _ in range(4):
        engine.sync()
        engine.kept.append(engine.step())  # <- kept


def rollout_of_a_policy() -> None:
    policy, obs, rollout = model(), batch(), {}
    with torch.no_grad():
        graph, action = captured(lambda: policy(obs).tanh())
        for step in range(4):
            graph.replay()
            rollout[step] = action  # <- kept
            policy.load_state_dict(model().state_dict())


def queue_of_results() -> None:
    x, recent = batch(), deque(maxlen=8)
    graph, out = captured(lambda: x * 2)
    for _ in range(4):
        graph.replay()
        recent.append(out)  # <- kept


def gradients_that_are_kept() -> None:
    """As in NVIDIA/TransformerEngine#2937."""
    net, gradients = model(), []
    call = torch.cuda.make_graphed_callables(net, (batch(),))
    for value in range(4):
        net.zero_grad()
        call(batch(float(value))).sum().backward()
        gradients.append(net.weight.grad)  # <- kept


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    ("program", "name"),
    [
        (list_of_the_static_loss, "losses"), (list_of_detached_results, "outputs"),
        (engine_that_keeps_logits, "self.kept"), (rollout_of_a_policy, "rollout"),
        (queue_of_results, "recent"), (gradients_that_are_kept, "gradients"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_a_container_that_grows_is_reported_with_the_line_that_adds(
    program: Callable[[], None], name: str
) -> None:
    (found,) = audited(program).overwritten_outputs
    assert (found.name, found.read_at) == (name, None)
    assert within(program, found.kept_at).endswith("# <- kept")
    assert found.captured_at is not None and found.replayed_at is not None


def two_results() -> None:
    call = graphed()
    real = call(batch(1.0))  # <- kept
    fake = call(batch(2.0))
    (real - fake).sum()  # <- read


def result_of_the_step_before() -> None:
    x, before = batch(), None
    graph, out = captured(lambda: x * 2)
    for value in range(3):
        x.fill_(value)
        graph.replay()
        now = out.detach()  # <- kept
        if before is not None:
            now.sub(before)  # <- read
        before = now


def two_engine_steps() -> None:
    engine = Engine()
    first = engine.step()
    engine.sync()
    second = engine.step()
    torch.cat([first, second])  # <- read


def old_and_new_policy() -> None:
    policy, obs = model(), batch()
    call = torch.cuda.make_graphed_callables(policy, (obs,))
    old = call(obs)  # <- kept
    with torch.no_grad():
        policy.weight.copy_(torch.zeros(4, 4, device="cuda"))
    new = call(obs)
    ratio = new - old  # <- read
    ratio.exp()


def gradients_that_are_zeroed_in_place() -> None:
    net = model()
    call = torch.cuda.make_graphed_callables(net, (batch(),))
    for _ in range(2):
        for each in net.parameters():
            if each.grad is not None:
                each.grad.zero_()
        call(batch()).sum().backward()  # <- read


@pytest.mark.usefixtures("on_emulated_device")
@pytest.mark.parametrize(
    "program",
    [
        two_results, result_of_the_step_before, two_engine_steps, old_and_new_policy,
        gradients_that_are_zeroed_in_place,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_an_operator_that_reads_an_earlier_result_is_reported(program: Callable[[], None]) -> None:
    found = audited(program).overwritten_outputs
    assert found
    assert within(program, found[0].read_at).endswith("# <- read")
    if any(line.endswith("# <- kept") for line in lines_of(program)):
        assert within(program, found[0].kept_at).endswith("# <- kept")


class CompiledGraph:
    """A graph whose outputs torch.compile's own code puts around their memory after each replay."""

    def __init__(self, body: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self._x = batch()
        self._graph, outputs = captured(lambda: body(self._x))
        self._pool = [each.untyped_storage() for each in outputs]  # nothing else holds the memory
        first = [self._pool.index(each) for each in self._pool]
        aliases = [trees.AliasesNewOutput(each) for each in first]
        self._node = node = trees.CUDAGraphNode.__new__(trees.CUDAGraphNode)
        node.graph = self._graph
        node.cached_tensor_outputs = []
        node.static_output_tensors = [None for _ in first]
        # As a storage in torch.compile's graphs: cached if one output has it.
        node.unaliased_in_all_paths = [first.count(each) == 1 for each in first]
        node.output_storage_alias = [
            trees.UnaliasedStorage if each == index else aliases[index]
            for index, each in enumerate(first)
        ]
        node.outputs_metadata = [
            node._tensor_metadata(each, ignore_storage_offset=False) for each in outputs
        ]
        for each in node.outputs_metadata:
            each["device"] = torch.device("cpu")  # of the emulated device's memory
        node.outputs_weakrefs = [trees.StorageWeakRefWrapper(each) for each in outputs]
        del outputs
        self._graph.replay()

    def __call__(self, value: float) -> list[torch.Tensor]:
        self._x.fill_(value)
        self._graph.replay()
        made: list[torch.Tensor] = self._node.reconstruct_outputs()
        return made


@pytest.fixture
def rebuilding(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch puts tensors around an address also where it is built without CUDA."""

    def construct(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
        with plain_torch():
            made = torch.empty(0, dtype=metadata["dtype"])
            made.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])
        device = entered()
        assert device is not None
        device.table.put_on_cuda(made)
        return made

    name = "_construct_CUDA_Tensor_From_Storage_And_Metadata"
    monkeypatch.setattr(torch._C, name, construct, raising=False)
    monkeypatch.setattr(torch._C, "_add_cached_tensor", lambda tensor: None)


def one(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2]


def with_view(x: torch.Tensor) -> list[torch.Tensor]:
    result = x * 2
    return [result, result[0]]


def compiled_list() -> None:
    call, outputs = CompiledGraph(one), []
    for value in range(6):
        outputs.append(call(value)[0])  # <- kept
    assert torch.equal(outputs[0], outputs[-1])


def compiled_list_after_warmup() -> None:
    call, outputs = CompiledGraph(one), []
    for value in range(40):
        call(value)
    for value in range(4):
        outputs.append(call(value)[0].detach())  # <- kept


def compiled_dictionary_of_storages_that_are_made_anew() -> None:
    call, outputs = CompiledGraph(with_view), {}
    for value in range(6):
        outputs[value] = call(value)[1]  # <- kept
    assert len({each.untyped_storage()._cdata for each in outputs.values()}) == 6


@pytest.mark.usefixtures("on_emulated_device", "rebuilding")
@pytest.mark.parametrize(
    "program",
    [
        compiled_list, compiled_list_after_warmup,
        compiled_dictionary_of_storages_that_are_made_anew,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_a_container_of_outputs_that_torch_rebuilds_is_reported(
    program: Callable[[], None],
) -> None:
    (found,) = audited(program).overwritten_outputs
    assert (found.name, found.read_at) == ("outputs", None)
    assert within(program, found.kept_at).endswith("# <- kept")


def compiled_and_read(body: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
    call, total = CompiledGraph(body), torch.zeros(4, device="cuda")
    for value in range(40):
        output = call(value)[-1]
        total += output.reshape(-1, 4)[0]


def compiled_and_copied(body: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
    call, outputs = CompiledGraph(body), []
    for value in range(40):
        outputs.append(call(value)[-1].clone())


def compiled_in_a_list_of_each_step(body: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
    calls, kept = [CompiledGraph(body) for _ in range(3)], []
    for value in range(40):
        kept.clear()
        for call in calls:
            kept.append(call(value)[-1])
        sum(each.sum() for each in kept)


@pytest.mark.usefixtures("on_emulated_device", "rebuilding")
@pytest.mark.parametrize("body", [one, with_view], ids=lambda body: body.__name__)
@pytest.mark.parametrize(
    "program",
    [compiled_and_read, compiled_and_copied, compiled_in_a_list_of_each_step],
    ids=lambda program: program.__name__,
)
def test_outputs_that_torch_rebuilds_are_not_reported_if_read_or_copied_in_time(
    program: Callable[..., None], body: Callable[[torch.Tensor], list[torch.Tensor]]
) -> None:
    assert not audited(lambda: program(body)).has_faults


def lines_of(program: Callable[[], None]) -> list[str]:
    code = program.__code__
    first = code.co_firstlineno
    last = max(line for _, _, line in code.co_lines() if line is not None)
    return Path(__file__).read_text().splitlines()[first - 1 : last]


def within(program: Callable[[], None], place: Location | None) -> str:
    """The line of a place, which is one of the program's."""
    assert place is not None
    line = Path(__file__).read_text().splitlines()[place.line - 1]
    assert line in lines_of(program)
    return line


def test_a_walk_over_what_a_program_holds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MOST_VISITS", 5)
    assert len([*VariablesWalk({"vocabulary": dict.fromkeys(range(100), "word")})]) == 5
