"""`torch.cuda` for a machine without a GPU: what it answers, and what it tells the observers."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from graphdoctor.device.emulated.graph import CapturingDevice, EmulatedGraph
from graphdoctor.device.emulated.logical import LogicalDevice, wants_cuda
from graphdoctor.device.emulated.streams import EmulatedEvent, EmulatedStream, EmulatedStreamContext
from graphdoctor.device.observe.host_calls import rng_call_name, rng_event
from graphdoctor.device.observe.patches import Patches
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.host_events import (
    ACCELERATOR_SYNCHRONIZE,
    IS_CAPTURING,
    SYNCHRONIZE,
)


def stand_in_for_random_state(device: LogicalDevice, patches: Patches) -> None:
    """The emulated device draws from the CPU's generator, so its state is that one."""

    def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            called = rng_call_name(name, sys._getframe(1))
            _tell(device, called, torch.default_generator, (name, args, kwargs))
            result = function(*args, **kwargs)
            if name in ("get_rng_state", "get_rng_state_all"):
                device.state_was_read(generator.get_state())
            elif name in ("set_rng_state", "set_rng_state_all"):
                device.state_was_set(generator.get_state())
            return result

        return call

    generator = torch.default_generator
    functions: dict[str, Callable[..., Any]] = {
        "get_rng_state": lambda device="cuda": generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda new_state, device="cuda": generator.set_state(new_state),
        "set_rng_state_all": lambda new_states: generator.set_state(new_states[0]),
        "manual_seed": lambda seed: generator.manual_seed(int(seed)),
        "manual_seed_all": lambda seed: generator.manual_seed(int(seed)),
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
    }
    for name, function in functions.items():
        for module in (torch.cuda, torch.cuda.random):
            patches.set(module, name, telling(name, function))
    patches.set(torch.cuda, "default_generators", (generator,) * device.rank.count)
    patches.set(torch, "Generator", _generator_class(device, torch.Generator))


def _tell(
    device: LogicalDevice,
    name: str,
    generator: torch.Generator,
    call: tuple[str, tuple[Any, ...], dict[str, Any]],
) -> None:
    method, args, kwargs = call
    argument = args[0] if args else next(iter(kwargs.values()), None)
    event = rng_event(name, method, argument, current_seed=generator.initial_seed, seed_of=_seed_of)
    device.event(event)


_PLAIN_GENERATOR = torch.Generator


def _seed_of(state: torch.Tensor) -> int:
    generator = _PLAIN_GENERATOR()
    generator.set_state(state)
    return int(generator.initial_seed())


def _generator_class(
    emulated: LogicalDevice, original: type[torch.Generator]
) -> type[torch.Generator]:
    class AnyGenerator(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, original)

    class Generator(original, metaclass=AnyGenerator):  # type: ignore[misc, valid-type]
        """A generator of the emulated device draws on the CPU and says where it belongs."""

        def __new__(cls, device: Any = "cpu") -> Any:
            made: Any = original.__new__(cls, "cpu")  # type: ignore[call-arg]
            made._logical = torch.device(device)
            return made

        @property
        def device(self) -> torch.device:
            where: torch.device = self._logical
            return torch.device("cuda", emulated.rank.index) if where.type == "cuda" else where

        def manual_seed(self, seed: int) -> Any:
            self._tell("manual_seed", "manual_seed", seed)
            return super().manual_seed(seed)

        def set_state(self, new_state: torch.Tensor) -> Any:
            self._tell("set_state", "set_rng_state", new_state)
            return super().set_state(new_state)

        def seed(self) -> int:
            self._tell("seed", "seed")
            return int(super().seed())

        def get_state(self) -> torch.Tensor:
            self._tell("get_state", "get_rng_state")
            state: torch.Tensor = super().get_state()
            return state

        def graphsafe_get_state(self) -> torch.Generator:
            state: torch.Generator = self.clone_state()
            return state

        def graphsafe_set_state(self, state: torch.Generator) -> Any:
            super().set_state(original.get_state(state))
            return self

        def _tell(self, name: str, method: str, *args: Any) -> None:
            if self._logical.type == "cuda":
                _tell(emulated, f"torch.Generator.{name}()", self, (method, args, {}))

    return Generator


_MEMORY_BYTES = 80 * 2**30


def stand_in_for_cuda(device: CapturingDevice, patches: Patches) -> None:
    """Replace what `torch.cuda` (and what leans on it) asks of the driver."""
    _presence(device, patches)
    _memory(patches)
    _streams_and_graphs(device, patches)
    stand_in_for_random_state(device, patches)
    _accelerator(device, patches)


def _set_all(patches: Patches, owner: object, **values: object) -> None:
    for name, value in values.items():
        patches.set(owner, name, value)


def _named(name: str, function: Any) -> Any:
    """A function of a code of its own, by which who watches calls knows it under any other name."""
    function.__code__ = function.__code__.replace(co_name=name)
    return function


def _always(value: object) -> Callable[..., object]:
    return lambda *args, **kwargs: value


def _presence(device: CapturingDevice, patches: Patches) -> None:
    major, minor = device.capability
    properties = SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        total_memory=_MEMORY_BYTES,
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 * 2**20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )
    _set_all(
        patches,
        torch.cuda,
        is_available=_always(True),
        is_initialized=_always(True),
        init=_always(None),
        _lazy_init=_always(None),
        _initialized=True,
        device_count=_always(device.rank.count),
        current_device=_always(device.rank.index),
        set_device=_set_device,
        _exchange_device=_always(device.rank.index),
        _maybe_exchange_device=_always(device.rank.index),
        get_device_name=_always(device.name),
        get_device_capability=_always(device.capability),
        get_device_properties=_always(properties),
        get_arch_list=_always([f"sm_{major}{minor}"]),
        is_bf16_supported=_always(True),
        is_tf32_supported=_always(True),
        can_device_access_peer=_always(False),
        set_sync_debug_mode=_always(None),
        get_sync_debug_mode=_always(0),
        synchronize=lambda *args, **kwargs: device.event(SYNCHRONIZE),
    )
    patches.set(torch.backends.cuda, "is_built", _always(True))
    # The tensors are the CPU's: a CUDA build's nn.RNN would hand them to cuDNN to lay them out anew.
    patches.set(torch.backends.cudnn, "is_acceptable", _always(False))
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", "12.8")
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set(torch.cuda.nvtx, name, _always(0))


def _set_device(device: Any) -> None:
    wants_cuda(device)


def _memory(patches: Patches) -> None:
    zeros = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    resets = (
        "empty_cache", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated",
        "reset_accumulated_memory_stats", "set_per_process_memory_fraction",
    )  # fmt: skip
    for module in (torch.cuda, torch.cuda.memory):
        for name in zeros:
            patches.set(module, name, _named(name, _always(0)))
        for name in resets:
            patches.set(module, name, _always(None))
        info = _named("mem_get_info", _always((_MEMORY_BYTES, _MEMORY_BYTES)))
        patches.set(module, "mem_get_info", info)
        patches.set(module, "memory_summary", _always(""))
        patches.set(module, "memory_snapshot", _always([]))
        stats = _named("memory_stats", lambda device=None: defaultdict(int))
        patches.set(module, "memory_stats", stats)
    patches.set(torch._C, "_host_emptyCache", _always(None))


def _streams_and_graphs(device: CapturingDevice, patches: Patches) -> None:
    state = device.streams
    bound = {"state": state, "__module__": "torch.cuda"}
    stream = type("Stream", (EmulatedStream,), bound)
    event = type("Event", (EmulatedEvent,), bound)
    context = type("StreamContext", (EmulatedStreamContext,), bound)
    graph = type("CUDAGraph", (EmulatedGraph,), {"device": device, "__module__": "torch.cuda"})

    def set_stream(wanted: EmulatedStream | None) -> None:
        if wanted is not None:
            state.switch_to(wanted)

    def is_capturing() -> bool:
        if not is_machinery(sys._getframe(1).f_code.co_filename):
            device.event(IS_CAPTURING)
        return device.is_capturing

    def graph_pool_handle() -> Any:
        return graph().pool()

    for module in (torch.cuda, torch.cuda.streams):
        _set_all(patches, module, Stream=stream, Event=event)
    for module in (torch.cuda, torch.cuda.graphs):
        _set_all(
            patches,
            module,
            CUDAGraph=graph,
            graph_pool_handle=graph_pool_handle,
            is_current_stream_capturing=is_capturing,
        )
    _set_all(
        patches,
        torch.cuda,
        stream=context,
        StreamContext=context,
        set_stream=set_stream,
        current_stream=lambda *args, **kwargs: state.current,
        default_stream=lambda *args, **kwargs: state.default,
    )
    patches.set(torch.cuda.graph, "default_capture_stream", None)
    patches.set(torch._C, "_cuda_isCurrentStreamCapturing", is_capturing)


def _accelerator(device: CapturingDevice, patches: Patches) -> None:
    for name in ("_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"):
        patches.replace(torch._C, name, lambda original: _always(device.rank.index))
    # FSDP2's default mesh is of this device.
    patches.set(torch._C, "_get_accelerator", _always(torch.device("cuda")))
    _set_all(
        patches,
        torch.accelerator,
        is_available=_always(True),
        device_count=_always(device.rank.count),
        current_accelerator=_always(torch.device("cuda")),
        current_device_index=_always(device.rank.index),
        current_device_idx=_always(device.rank.index),
        set_device_index=lambda device: _set_device(device),
        current_stream=lambda *args, **kwargs: device.streams.current,
        set_stream=lambda stream: setattr(device.streams, "current", stream),
        synchronize=lambda *args, **kwargs: device.event(ACCELERATOR_SYNCHRONIZE),
        empty_cache=_always(None),
    )
