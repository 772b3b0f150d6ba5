"""Follows each CUDA graph from its capture on: is the memory that it uses still there before each replay?"""

from __future__ import annotations

import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import graphdoctor
from graphdoctor.device.captured_kernels import CaptureNodes
from graphdoctor.device.emulated import EmulatedDevice, entered
from graphdoctor.device.observe.interpreter import no_collection
from graphdoctor.device.observe.operators import (
    Call,
    Observer,
    tensors_of,
    written_tensors,
)
from graphdoctor.device.observe.patches import Patches
from graphdoctor.device.observe.storages import (
    Geometry,
    StorageInfo,
    StorageTable,
    is_plain,
    parts_of,
)
from graphdoctor.device.real import CaptureMode, RealStorageTable, private_pools
from graphdoctor.graphs.calls.tally import audited
from graphdoctor.measure.audit.blame import shows_difference, smallest_script
from graphdoctor.measure.audit.captured_operators import (
    KernelUse,
    OperatorRecorder,
    UndispatchedKernels,
    used_storages,
)
from graphdoctor.measure.audit.frozen_values import (
    CapturedNumbers,
    ChangedMemory,
    NumberOrigins,
    Sources,
    changed_numbers,
)
from graphdoctor.measure.audit.held_outputs import (
    GraphOutputs,
    HeldOutputs,
    Replays,
    uses_no_memory,
)
from graphdoctor.measure.audit.places import (
    Holder,
    Key,
    Place,
    frames_of_program,
    is_registered,
    roots_of,
    tensors_of_program,
    users_frames,
)
from graphdoctor.measure.audit.uncopied_inputs import CapturedInput, CapturedInputs, new_tensors
from graphdoctor.measure.audit.verified_replays import ReplayVerifier
from graphdoctor.measure.watch.profiler import Gate
from graphdoctor.measure.watch.watcher import GraphCounts
from graphdoctor.target.frames import locate
from graphdoctor.target.program.launch import Program, run_program
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.values.audited import (
    AUDIT_SCHEMA_VERSION,
    AuditReport,
    FrozenValue,
    Spacing,
    StaleTensor,
    UncopiedInput,
)
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Location
from graphdoctor.values.program import Ending

_Reason = Literal["freed", "moved", "rebound"]
_FIRST = 8  # replays of a graph, each of which looks at everything
_EVERY = 32  # of the later ones does; the others look at what may have changed
_use_count: Callable[[int], int] = torch._C._storage_Use_Count
_is_expired: Callable[[int], bool] = torch._C.StorageBase._expired  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Outside:
    """A storage from outside the pool, and the first operator that used it, or kernel that torch does not dispatch."""

    info: StorageInfo
    weak: StorageWeakRef  # as long as it is held, no other storage gets its address
    nbytes: int
    address: int  # 0 on the emulated device, where it says nothing
    shape: tuple[int, ...]
    dtype: str
    operator: str
    location: Location | None
    is_written: bool | None = False  # None: unknown, of a kernel
    name: str = ""
    slots: tuple[Place, ...] = ()  # the parameters and buffers of modules that had it


class _CaptureUses(Observer):
    """Keeps the storages that operators and kernels of a capture use and that no capture made."""

    def __init__(self, table: StorageTable, made: set[int], *, has_addresses: bool) -> None:
        self._table, self._made, self._has_addresses = table, made, has_addresses
        self.outside: dict[int, _Outside] = {}
        self.results: list[ref[torch.Tensor]] = []

    def before(self, call: Call) -> None:
        if uses_no_memory(call.facts):
            return
        written = {id(each) for each in written_tensors(call.facts, call.args, call.kwargs)}
        for tensor in call.inputs:
            for part in parts_of(tensor):
                if not self._table.is_cuda(part) or not part.numel():
                    continue
                info = self._table.info(part)
                if info.number in self._made:
                    continue
                found = self.outside.get(info.number)
                if found is None:
                    storage = info.storage()
                    if storage is None:
                        continue
                    found = self.outside[info.number] = _Outside(
                        info=info,
                        weak=StorageWeakRef(storage),
                        nbytes=storage.nbytes(),
                        address=storage.data_ptr() if self._has_addresses else 0,
                        shape=tuple(tensor.shape),
                        dtype=str(tensor.dtype).removeprefix("torch."),
                        operator=call.facts.name,
                        location=locate().location,
                    )
                found.is_written = found.is_written or id(tensor) in written

    def after(self, call: Call) -> None:
        given = {info.number for info in call.infos}
        for tensor in tensors_of(call.result):
            for part in parts_of(tensor):
                number = self._table.info(part).number
                if number not in given:
                    self._made.add(number)
                if number in self._made:
                    self.results.append(ref(part))

    def add(self, uses: Iterable[KernelUse]) -> None:
        """What kernels use besides: memory of living tensors, by the addresses in the kernels' parameters."""
        alive = (each for each in self._table.alive() if each[1].device.type == "cuda")
        for use, info, storage in used_storages(uses, alive):
            if info.number in self._made or info.number in self.outside:
                continue
            nbytes = storage.nbytes()
            self.outside[info.number] = _Outside(
                info=info,
                weak=StorageWeakRef(storage),
                nbytes=nbytes,
                address=storage.data_ptr(),
                shape=(nbytes,),
                dtype="uint8",
                operator=shortened(use.kernel.name),
                location=use.location,
                is_written=None,
            )


@dataclass(slots=True)
class _Capture:
    """A graph after its capture. `held` is how many tensors of an emulated graph are on each storage."""

    outside: tuple[_Outside, ...]
    addresses: tuple[int, ...]  # of the same storages' implementations
    replays: Replays
    results: list[ref[torch.Tensor]]
    numbers: Sources
    inputs: list[CapturedInput]
    written: frozenset[int]  # memory from outside, by number
    changes: int = 0  # of captured memory, at the last look
    counts: list[int] = field(default_factory=list)  # of tensors on it, on the emulated device
    outputs: GraphOutputs = field(default_factory=GraphOutputs)
    held: Counter[int] = field(default_factory=Counter)


class _UnderWay(NamedTuple):
    """A capture that has begun."""

    uses: _CaptureUses
    kernels: UndispatchedKernels | None
    numbers: CapturedNumbers
    inputs: CapturedInputs
    recorder: OperatorRecorder | None
    holders: dict[int, list[Holder]]
    watching: ExitStack  # until the capture is to end
    ended: ExitStack  # until it has ended
    location: Location | None


class GraphAudit(GraphCounts):
    """Counts graphs, and before each replay checks the memory from outside that the capture used."""

    def __init__(
        self, *, every: Spacing = 0, debug_eager: bool = False, blame: bool = False,
        roots: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(Gate())
        self._emulated: EmulatedDevice | None = entered()
        self._table = self._emulated.table if self._emulated is not None else RealStorageTable()
        self._roots = roots or {}
        self.is_paused = False
        self._made: set[int] = set()  # by number, which no other storage gets
        self._under_way: dict[int, _UnderWay] = {}
        self._captures: WeakKeyDictionary[Any, _Capture] = WeakKeyDictionary()
        self._outputs = HeldOutputs(self._table)
        self._compilers: Patches | None = None  # of torch.compile, once it captures
        self._changed = ChangedMemory(self._table)
        self._verifier = (
            ReplayVerifier(
                self._table, self._emulated, every=every, instead=debug_eager, keeps_inputs=blame
            )
            if every or debug_eager
            else None
        )
        self.found: list[StaleTensor] = []
        self._frozen_values: list[FrozenValue] = []
        self._uncopied: list[UncopiedInput] = []

    @contextmanager
    def on(self, graph_type: Any) -> Iterator[None]:
        """Check graphs of this type while the block runs."""
        device = self._emulated
        if device is not None:
            device.attach(self._outputs)
        try:
            with super().on(graph_type), self._changed.on(), audited(self):
                yield
        finally:
            if self._compilers is not None:
                self._compilers.undo()
                self._compilers = None
            if device is not None:
                device.detach(self._outputs)

    def report(
        self, command: tuple[str, ...] = (), ending: Ending = "finished", exit_code: int = 0
    ) -> AuditReport:
        """What was found so far."""
        for capture in list(self._captures.values()):
            self._check_outputs(capture)
        return AuditReport(
            schema_version=AUDIT_SCHEMA_VERSION,
            tool_version=graphdoctor.__version__,
            command=command,
            device="emulated" if self._emulated is not None else "cuda",
            ending=ending,
            exit_code=exit_code,
            audited_graphs=self.read(),
            stale_tensors=tuple(self.found),
            overwritten_outputs=tuple(self._outputs.found),
            frozen_values=tuple(self._frozen_values),
            wrong_replays=tuple(self._verifier.found) if self._verifier is not None else (),
            verified=self._verifier.counts if self._verifier is not None else None,
            uncopied_inputs=tuple(self._uncopied),
        )

    def blame(self, shows: Callable[[str], bool] = shows_difference) -> str | None:
        """The smallest script that shows the first wrong replay; None without one. After the block."""
        blamed = self._verifier.blamed if self._verifier is not None else ()
        scripts = (smallest_script(operators, shows) for operators in blamed)
        return next((script for script in scripts if script is not None), None)

    def _capture_begin(
        self, method: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with ExitStack() as ended:
            ended.enter_context(no_collection())
            holders = self._holders()
            begun = super()._capture_begin(method, graph, *args, **kwargs)
            self._captures.pop(graph, None)
            self._see_rebuilt_outputs()
            is_real = self._emulated is None
            uses = _CaptureUses(self._table, self._made, has_addresses=is_real)
            origins = NumberOrigins(self._table)
            numbers = CapturedNumbers(self._table, origins)
            inputs = CapturedInputs(self._table, self._made)
            recorder = (
                OperatorRecorder(self._table, origins, one_generator=not is_real)
                if self._verifier is not None
                else None
            )
            kernels = (
                UndispatchedKernels(CaptureNodes(torch.cuda.current_stream().cuda_stream))
                if is_real
                else None
            )
            optional = [each for each in (recorder, kernels) if each is not None]
            observers = (uses, numbers, inputs, *optional)
            watching = ended.enter_context(ExitStack())
            if self._emulated is not None:
                for each in observers:
                    self._emulated.attach(each)
                    watching.callback(self._emulated.detach, each)
            else:
                watching.enter_context(CaptureMode(self._table, observers))
            self._under_way[id(graph)] = _UnderWay(
                uses,
                kernels,
                numbers,
                inputs,
                recorder,
                holders,
                watching,
                ended.pop_all(),
                locate().location,
            )
            self._outputs.is_capturing = True
        return begun

    def _see_rebuilt_outputs(self) -> None:
        """Watch outputs of torch.compile's graphs, which the captures do not make."""
        trees = sys.modules.get("torch._inductor.cudagraph_trees")  # there once it captures
        node = getattr(trees, "CUDAGraphNode", None)
        if node is None or self._compilers is not None:
            return
        self._compilers = Patches()
        self._compilers.replace(node, "_reconstruct_from_tensor_metadata", self._rebuilds)

    def _rebuilds(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def rebuild(node: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = method(node, *args, **kwargs)
            graph = getattr(node, "graph", None)
            # None while the node wraps its inputs, before its capture.
            capture = self._captures.get(graph) if graph is not None else None
            if capture is not None and not self.is_paused and is_plain(tensor):
                with suppress(RuntimeError):  # of memory that torch has taken away
                    self._outputs.add_rebuilt(capture.outputs, tensor, capture.replays)
            return tensor

        return rebuild

    def _capture_end(
        self, method: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any
    ) -> Any:
        capture = self._under_way.pop(id(graph), None)
        self._outputs.is_capturing = bool(self._under_way)
        with capture.ended if capture is not None else nullcontext():
            if capture is not None:
                capture.watching.close()
                if capture.kernels is not None:
                    with suppress(RuntimeError):  # of a storage without an address
                        capture.uses.add(capture.kernels.all())
            ended = super()._capture_end(method, graph, *args, **kwargs)
        if capture is not None:
            self._keep(graph, capture)
        return ended

    def _keep(self, graph: Any, capture: _UnderWay) -> None:
        """Name what a capture used, for the checks before its replays."""
        outside = list(capture.uses.outside.values())
        if self._emulated is None:
            # Without memory of graphs' private pools, which is theirs while no tensor holds it.
            pools = private_pools()
            outside = [each for each in outside if not any(each.address in pool for pool in pools)]
        operators = capture.recorder.operators if capture.recorder is not None else None
        for each in outside:
            holders = capture.holders.get(each.info.number, ())
            of_module = [
                one for one in holders if one.place is not None and is_registered(one.place)
            ]
            named = of_module or [one for one in holders if one.place is None]
            if named:
                each.name = named[0].text
                # An operator may get another form of it, such as its transpose; a kernel gets an address.
                if (geometry := named[0].geometry) is not None:
                    each.shape = geometry.shape
                    each.dtype = str(geometry.dtype).removeprefix("torch.")
            # Not those in which the captured code itself has put other memory.
            places = (one.place for one in of_module if one.place is not None)
            each.slots = tuple(place for place in places if not self._is_rebound(place, each))
        if self._verifier is not None and operators is not None:
            # By the captured expression, because an object that it reads may be replaced later.
            for read in capture.inputs.all():
                held = capture.holders.get(read.number, [])
                if any(each.place is not None for each in held):
                    held += [Holder(read.geometry, each, each.text) for each in read.places]
            self._verifier.keep(graph, operators, capture.holders, capture.location)
        self._changed.captured.update(each.info.number for each in outside)
        numbers = capture.numbers.sources()
        written = frozenset(each.info.number for each in outside if each.is_written)
        inputs = capture.inputs.read(
            # What a module holds may not be replaced, whatever is copied.
            {each.info.number for each in outside if not each.slots} - written
        )
        self._changed.watch(each.place for each in numbers.values())
        self._changed.watch(place for each in inputs for place in each.places)
        self._captures[graph] = _Capture(
            outside=tuple(outside),
            addresses=tuple(each.weak.cdata for each in outside),
            replays=Replays(capture.location),
            results=capture.uses.results,
            numbers=numbers,
            inputs=inputs,
            written=written,
            held=graph.tape.references_to_outside() if self._emulated is not None else Counter(),
        )

    def _holders(self) -> dict[int, list[Holder]]:
        """What the capturing frames lead to, by the number of its storage."""
        found: dict[int, list[Holder]] = defaultdict(list)
        # Outputs of torch.compile's graphs that were overwritten raise where they are looked at.
        with plain_torch(), suppress(RuntimeError):
            for tensor, place, text in tensors_of_program(users_frames(), self._roots):
                with suppress(RuntimeError):
                    parts = parts_of(tensor)
                    geometry = Geometry.of_tensor(tensor) if is_plain(tensor) else None
                    if len(parts) == 1:
                        number = self._table.info(parts[0]).number
                        found[number].append(Holder(geometry, place, text))
        return found

    def _replays(self, method: Callable[..., Any]) -> Callable[..., Any]:
        counted = super()._replays(method)
        verifier = self._verifier
        verified = super()._replays(verifier.verified(method)) if verifier is not None else counted

        @functools.wraps(method)
        def replay(graph: Any) -> Any:
            if self.is_paused:
                return counted(graph)
            capture = self._captures.get(graph)
            if capture is not None:
                self._check(graph, capture)
            return verified(graph)

        return replay

    def _check(self, graph: Any, capture: _Capture) -> None:
        replays = capture.replays
        if replays.count == 0:
            capture.outputs = self._outputs.begin(capture.results, replays)
            capture.results.clear()
        else:
            self._check_outputs(capture)
        replays.count += 1
        if self._emulated is not None:
            # An operator may be found to read what this replay overwrites.
            replays.last_at = locate().location
        is_due = replays.count <= _FIRST or replays.count % _EVERY == 0
        if is_due:
            frames = frames_of_program()
            self._check_numbers(capture, frames)
            if not self._under_way:
                self._check_inputs(capture, frames)
        if not self._is_suspect(capture) and not is_due:
            return
        stale = [(each, why) for each in capture.outside if (why := self._reason(each))]
        if not stale:
            return
        replayed_at = locate().location
        reported = {id(each) for each, _ in stale}
        capture.outside = tuple(each for each in capture.outside if id(each) not in reported)
        capture.addresses = tuple(each.weak.cdata for each in capture.outside)
        for each, why in stale:
            self.found.append(
                StaleTensor(
                    reason=why,
                    name=each.name,
                    shape=each.shape,
                    dtype=each.dtype,
                    operator=each.operator,
                    is_written=each.is_written,
                    used_at=each.location,
                    captured_at=replays.captured_at,
                    replayed_at=replayed_at,
                    replay=replays.count,
                    changed_at=self._changed.lines.get(each.info.number),
                )
            )

    def _check_numbers(self, capture: _Capture, frames: list[FrameType]) -> None:
        replays = capture.replays
        for each, now in changed_numbers(capture.numbers, frames, self._table):
            key = each.place.key
            siblings = (other.numbers.get(key, each) for other in self._siblings(capture))
            if any(other.value != each.value for other in siblings):
                continue  # it chooses between graphs
            self._frozen_values.append(
                FrozenValue(
                    name=each.place.text,
                    captured=repr(each.value),
                    now=repr(now),
                    operator=each.operator,
                    used_at=each.location,
                    captured_at=replays.captured_at,
                    replayed_at=locate().location,
                    replay=replays.count,
                    changed_at=self._changed.lines_of_places.get(key),
                )
            )

    def _check_inputs(self, capture: _Capture, frames: list[FrameType]) -> None:
        replays = capture.replays
        for found in new_tensors(capture.inputs, frames, self._table):
            each = found.read
            is_written = any(each.number in one.written for one in list(self._captures.values()))
            if is_written or (found.place and self._chooses(capture, each, found.place.key)):
                continue
            if each in capture.inputs:  # reported once
                capture.inputs.remove(each)
                self._uncopied.append(
                    UncopiedInput(
                        name=each.places[0].text if found.place is None else found.place.text,
                        argument=found.name if found.place is None else "",
                        shape=tuple(found.tensor.shape),
                        dtype=str(found.tensor.dtype).removeprefix("torch."),
                        operator=each.operator,
                        used_at=each.location,
                        captured_at=replays.captured_at,
                        passed_at=found.passed_at,
                        replayed_at=locate().location,
                        replay=replays.count,
                        changed_at=self._changed.lines_of_places.get(found.place.key)
                        if found.place is not None
                        else None,
                    )
                )

    def _chooses(self, capture: _Capture, read: CapturedInput, key: Key) -> bool:
        """Whether another graph of the same line read another tensor from a place."""
        return any(
            each.number != read.number and any(place.key == key for place in each.places)
            for other in self._siblings(capture)
            for each in other.inputs
        )

    def _siblings(self, capture: _Capture) -> Iterator[_Capture]:
        """The other graphs that the same line captured."""
        for each in list(self._captures.values()):
            if each is not capture and each.replays.captured_at == capture.replays.captured_at:
                yield each

    def _check_outputs(self, capture: _Capture) -> None:
        if self._outputs.have_new_references(capture.outputs):
            capture.replays.last_at = capture.replays.last_at or locate().location
            frames = users_frames()
            self._outputs.look(roots_of(frames), frames)

    def _is_suspect(self, capture: _Capture) -> bool:
        """Whether memory of a capture was freed, or was seen to be replaced since the last look."""
        before, capture.changes = capture.changes, self._changed.changes
        if before != capture.changes:
            return True
        if self._emulated is None:
            return any(map(_is_expired, capture.addresses))
        counts, capture.counts = capture.counts, [*map(_use_count, capture.addresses)]
        return counts != capture.counts

    def _is_rebound(self, place: Place, each: _Outside) -> bool:
        now = place.read([])
        return isinstance(now, torch.Tensor) and self._table.info(now) is not each.info

    def _reason(self, each: _Outside) -> _Reason | None:
        if any(self._is_rebound(place, each) for place in each.slots):
            return "rebound"
        storage = each.info.storage()
        if storage is None or storage.nbytes() < each.nbytes:
            return "freed"
        if each.address:
            return "moved" if storage.data_ptr() != each.address else None
        # An emulated graph itself holds the memory that it uses. One more is `storage`.
        tapes = sum(c.held[each.weak.cdata] for c in list(self._captures.values()))
        return "freed" if _use_count(each.weak.cdata) - 1 <= tapes else None


@contextmanager
def audit(
    *,
    verify: Spacing = 0,
    debug_eager: bool = False,
    blame: bool = False,
    roots: Mapping[str, object] | None = None,
) -> Iterator[GraphAudit]:
    """Check each CUDA graph that is captured in the block, before each of its replays.

    The device is the emulated one if the block is inside `graphdoctor.EmulatedDevice()`, else
    CUDA. `report()` of what this gives lists the faults so far. Nothing is raised for them.

    `verify=100`: the first replay of each graph, and each 100th after it, is compared with its operators, run
    eagerly on what the program's tensors and numbers are then. "auto": the first, and later ones as often as this
    takes no more than 3 % of the time. `debug_eager`: every replay is this eager run.
    `blame`: keep what `blame()` of this needs to write the smallest script that shows a wrong replay.
    `roots`: objects by name in which tensors are looked for, besides the variables of the frames that capture.
    """
    audited = GraphAudit(every=verify, debug_eager=debug_eager, blame=blame, roots=roots)
    with audited.on(torch.cuda.CUDAGraph):
        yield audited


class AuditedProgram(NamedTuple):
    """`text` is what Python would write to stderr; `script` shows the first wrong replay, if that was asked for."""

    report: AuditReport
    text: str
    script: str | None


def audit_program(
    program: Program, *, verify: Spacing = 0, debug_eager: bool = False, blame: bool = False
) -> AuditedProgram:
    """Run it to its end on the device that is entered.

    Raises UsageError where there is no such program.
    """
    with audit(verify=verify, debug_eager=debug_eager, blame=blame) as audited:
        ended = run_program(program, lambda: False)
    report = audited.report(program.command, ended.ending, ended.exit_code)
    return AuditedProgram(report, ended.text, audited.blame() if blame else None)
