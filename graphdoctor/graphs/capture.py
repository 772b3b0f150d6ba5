"""Capture work on a side stream as one CUDA graph, or restore the device after a refusal.

The only place where graphs are recorded, on a real GPU and on the emulated device alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from graphdoctor.device.observe.dropout_states import last_dropout_states
from graphdoctor.device.observe.interpreter import no_collection
from graphdoctor.graphs.cause import Refusal, refusal_of

T = TypeVar("T")
_EMPTY = "The CUDA Graph is empty"


class Resettable(Protocol):
    """A graph, or several."""

    def reset(self) -> object: ...


class Pool:
    """The memory of several graphs that never run at the same time, and the stream to capture them on.

    They share only what was freed on the same stream, so that all have to be captured on `side`.
    After a failed capture the next graphs get memory of their own: torch goes on counting the
    failed one as recording into the old pool, and refuses another there. So it does where all graphs
    of a pool were given back.
    """

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        self._earlier: list[Any] = []
        self.side: Any = stream_for_capture()

    @property
    def reserved_bytes(self) -> int:
        """What the allocator of a real GPU holds for these graphs now."""
        torch.cuda.synchronize()
        segments = torch.cuda.memory_snapshot()
        own = {tuple(handle) for handle in (*self._earlier, self.handle)}
        return sum(
            segment["total_size"]
            for segment in segments
            if tuple(segment.get("segment_pool_id", ())) in own
        )

    def reset(self) -> None:
        """Let the graphs that come now have memory of their own."""
        self._earlier.append(self.handle)
        self.handle = torch.cuda.graph_pool_handle()


@dataclass(frozen=True, slots=True)
class Recorded(Generic[T]):
    """A graph, and what its work returned: tensors in the graph's memory. Empty without a kernel."""

    graph: Any
    result: T
    is_empty: bool


def record_graph(
    work: Callable[[], T],
    side: Any,
    *,
    pool: Pool | None = None,
    warm_up: Callable[[], object] | None = None,
) -> Recorded[T] | Refusal:
    """`capture_graph`, with the reason instead of the error where CUDA or the work itself refused.

    Raises only what is no refusal, as `refusal_of` decides.
    """
    try:
        return capture_graph(work, side, pool=pool, warm_up=warm_up)
    except BaseException as error:
        return refusal_of(error)


def capture_graph(
    work: Callable[[], T],
    side: Any,
    *,
    pool: Pool | None = None,
    warm_up: Callable[[], object] | None = None,
) -> Recorded[T]:
    """Capture `work` on the stream `side`, after `warm_up` has run there.

    The graph's memory comes from `pool`, or from a pool of its own. Whatever is raised, the device
    is usable afterwards.
    """
    capture = Capture(side, pool)
    with device_usable_after_failure(capture):
        if warm_up is not None:
            run_on(side, warm_up)
        capture.begin()
        try:
            result = work()
        finally:
            is_empty = capture.end()
    return Recorded(capture.graph, result, is_empty)


def stream_for_capture() -> Any:
    """The current stream, if a capture may depend on it, else a new one.

    What ran before on that very stream, such as a warmup, needs no wait between streams then.
    """
    current = torch.cuda.current_stream()
    return torch.cuda.Stream() if current == torch.cuda.default_stream() else current


def run_on(side: Any, work: Callable[[], object]) -> None:
    """Run work on the stream `side`, behind what was issued before and ahead of what comes after."""
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            work()
    except BaseException:
        with suppress(RuntimeError):  # the work's own error says more
            torch.cuda.current_stream().wait_stream(side)
        raise
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


@contextmanager
def no_word_of_empty_graphs() -> Iterator[None]:
    """Without torch's warning of a graph that holds nothing, as one whose capture failed does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_EMPTY)
        yield


class Capture:
    """One graph, from `begin` to `end`; `reset` gives it back at any time."""

    def __init__(self, side: Any, pool: Pool | None = None) -> None:
        self.graph: Any = torch.cuda.CUDAGraph()
        self._side, self._pool = side, pool
        self._under_way = ExitStack()
        # Other threads of the program may go on using the GPU: only this one is watched.
        self._context: Any = torch.cuda.graph(
            self.graph,
            pool=pool.handle if pool is not None else None,
            stream=side,
            capture_error_mode="thread_local",
        )

    def begin(self) -> None:
        self._under_way.enter_context(no_collection())
        self._context.__enter__()

    def end(self) -> bool:
        """Whether the graph is empty. Raises RuntimeError for a capture that something spoilt."""
        with self._under_way, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self._context.__exit__(None, None, None)
        # A replay writes there, also after torch has replaced and dropped it because a generator was seeded.
        self.graph.dropout_states = last_dropout_states()
        others = [warning for warning in said if _EMPTY not in str(warning.message)]
        for other in others:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        return len(others) < len(said)

    def reset(self) -> None:
        """Leave the capture, should it still be under way, and give the graph's memory back."""
        with (
            self._under_way,
            suppress(RuntimeError),
            warnings.catch_warnings(),
            torch.cuda.stream(self._side),
        ):
            warnings.simplefilter("ignore")  # that an abandoned graph is empty is no news
            if torch.cuda.is_current_stream_capturing():
                self.graph.capture_end()
        self.graph.reset()
        if self._pool is not None:
            self._pool.reset()


@contextmanager
def device_usable_after_failure(graph: Resettable) -> Iterator[None]:
    """After a failed capture, put back what torch leaves behind: stream, pool and generators.

    `torch.cuda.graph` stays on its stream when ending the capture raises. Before torch 2.13 the
    default generator stays in capture mode too (pytorch#171263).
    """
    stream = torch.cuda.current_stream()
    generators = [(g, g.clone_state()) for g in _cuda_generators()]
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        for repair in (
            graph.reset,
            torch.cuda.synchronize,
            _clear_cusolver,
            torch.cuda.empty_cache,
        ):
            with suppress(RuntimeError):
                repair()
        for generator, state in generators:
            with suppress(RuntimeError):
                generator.graphsafe_set_state(state)
        raise


def _clear_cusolver() -> None:
    """Let cuSOLVER report the error that a refused capture left in its handle, once.

    On an H100 with torch 2.11 the first eager `torch.linalg.eigh` after a refused capture of one raises
    CUSOLVER_STATUS_EXECUTION_FAILED, and all later calls succeed.
    """
    if _cuda_generators():
        torch.linalg.eigvalsh(torch.eye(2, device="cuda"))


def _cuda_generators() -> list[Any]:
    """The real device's generators, of a torch that can exchange their state."""
    found: list[Any] = list(getattr(torch.cuda, "default_generators", ()))
    return [g for g in found if g.device.type == "cuda" and hasattr(g, "clone_state")]
