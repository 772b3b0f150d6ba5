"""Stand-ins for torch's Python code that would see the physical device below the modes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import overrides, serialization
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.device.emulated.graph import CapturingDevice
from graphdoctor.device.emulated.logical import LogicalDevice, wants_cuda
from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.device.observe.host_calls import note_refused_optimizers, telling_repr
from graphdoctor.device.observe.patches import Patches, let_scripts_ask_for_overrides
from graphdoctor.values.host_events import CompileBypassed, Sync


def stand_in_for_python(device: LogicalDevice, patches: Patches) -> None:
    """Replace Python functions that read tensors or devices behind the modes' back."""
    patches.replace(torch._tensor_str, "_str", lambda original: telling_repr(device, original))
    patches.replace(
        torch.Tensor, "__deepcopy__", lambda original: _placed_deepcopy(device, original)
    )
    patches.replace(torch.autocast, "__enter__", _autocast_enter)
    patches.replace(torch.autocast, "__exit__", _autocast_exit)
    note_refused_optimizers(device, patches)
    _group_by_logical_device(device, patches)
    _compile_bypass(device, patches)
    _programs_from_code(patches)
    _nested_tensors(device, patches)
    # DataParallel on one GPU only moves its input; torch's C++ for it is not in a CPU build.
    from torch.nn.parallel import _functions, comm

    patches.set(_functions, "_get_stream", lambda device: None)
    patches.set(comm, "scatter", lambda tensor, *args, **kwargs: (tensor.cuda(),))
    patches.set(torch._C, "_cuda_jiterator_compile_and_launch_kernel", _no_kernels_from_text)


def _no_kernels_from_text(code: str, name: str, *args: object) -> object:
    raise EmulationLimit(f"The emulated CUDA device cannot run {name}, a kernel in CUDA C++.")


def _placed_deepcopy(device: LogicalDevice, original: Callable[..., Any]) -> Callable[..., Any]:
    """copy.deepcopy clones the storage below the dispatcher: put the clone where it belongs."""

    def deep_copy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        copied = original(self, memo)
        if device.table.is_cuda(self):
            device.put(copied)
        return copied

    return deep_copy


def _autocast_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    """autocast("cuda") also casts for the CPU, on which the operators really run.

    Known limit: the CPU's lists of operators that run in float32 are shorter than CUDA's.
    """

    def enter(self: Any) -> Any:
        if self.device == "cuda":
            self._cpu_before = (
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
            )
            torch.set_autocast_enabled("cpu", self._enabled)
            torch.set_autocast_dtype("cpu", self.fast_dtype)
        return original(self)

    return enter


def _autocast_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def leave(self: Any, *exc_info: Any) -> Any:
        result = original(self, *exc_info)
        if self.device == "cuda":
            enabled, dtype = self._cpu_before
            torch.set_autocast_enabled("cpu", enabled)
            torch.set_autocast_dtype("cpu", dtype)
        return result

    return leave


def _group_by_logical_device(device: LogicalDevice, patches: Patches) -> None:
    """Optimizers and clip_grad_norm_ group tensors in C++, by the physical device."""
    from torch.utils import _foreach_utils

    name = "_group_tensors_by_device_and_dtype"

    def group(tensorlistlist: Any, with_indices: bool = False) -> dict[Any, Any]:
        grouped: dict[Any, Any] = {}
        for index, first in enumerate(tensorlistlist[0]):
            if first is None:
                continue
            lists, indices = grouped.setdefault(
                (first.device, first.dtype), ([[] for _ in tensorlistlist], [])
            )
            for into, tensors in zip(lists, tensorlistlist, strict=True):
                if tensors:
                    into.append(tensors[index])
            if with_indices:
                indices.append(index)
        return grouped

    patches.set(_foreach_utils, name, group)  # others import it by name, and are reached so


def _compile_bypass(device: LogicalDevice, patches: Patches) -> None:
    """Compilers give their argument back: they would trace the emulation, not the model."""

    def run_eagerly(model: Any = None, **options: Any) -> Any:
        device.event(CompileBypassed("torch.compile()"))
        device.passed_compiler_by = True
        return model if model is not None else (lambda function: function)

    def traced(function: Any, *args: Any, **kwargs: Any) -> Any:
        device.event(CompileBypassed("torch.jit.trace()"))
        return function

    def compile_in_place(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        run_eagerly(self)

    patches.set(torch, "compile", run_eagerly)
    patches.set(torch.nn.Module, "compile", compile_in_place)
    patches.set(torch.jit, "trace", traced)


def _programs_from_code(patches: Patches) -> None:
    """What reads the model's code or traces it runs below the modes, on plain CPU tensors.

    `torch.cond` would trace its branches to differentiate them; run in eager, they do that themselves.
    """

    def exporting(original: Callable[..., Any]) -> Callable[..., Any]:
        def export(*args: Any, **kwargs: Any) -> Any:
            with _below_modes():
                return original(*args, **kwargs)

        return export

    def scripting(original: Callable[..., Any]) -> Callable[..., Any]:
        def script(obj: Any, optimize: Any = None, _frames_up: int = 0, **others: Any) -> Any:
            let_scripts_ask_for_overrides()
            # A class's names are looked up in the frame that called, and this function is one more.
            return original(obj, optimize, _frames_up + 1, **others)

        return script

    def cond(
        pred: Any,
        true_fn: Callable[..., Any],
        false_fn: Callable[..., Any],
        operands: Iterable[Any] = (),
    ) -> Any:
        return (true_fn if pred else false_fn)(*operands)

    patches.replace(torch.export, "export", exporting)
    patches.replace(torch.jit, "script", scripting)
    patches.set(torch, "cond", cond)


@contextmanager
def _below_modes() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(overrides._pop_mode_temporarily())
        stack.enter_context(_disable_current_modes())
        yield


def _nested_tensors(device: LogicalDevice, patches: Patches) -> None:
    """Their constructors hand the device to C++: make them on the CPU, then move them."""

    def moving(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
            if not wants_cuda(device) or kwargs.get("layout") is torch.jagged:
                return original(*args, device=device, **kwargs)
            return original(*args, device="cpu", **kwargs).cuda()

        return make

    for name in ("nested_tensor", "as_nested_tensor"):
        patches.replace(torch.nested, name, moving)


def stand_in_for_saving(device: LogicalDevice, patches: Patches) -> None:
    """Replace what tells a storage's device when it is saved, and puts it there when loaded."""
    patches.replace(serialization, "location_tag", lambda original: _tag(device, original))
    patches.replace(
        serialization, "default_restore_location", lambda original: _restore(device, original)
    )


def _tag(device: LogicalDevice, original: Callable[..., str]) -> Callable[..., str]:
    def location_tag(storage: Any) -> str:
        if not device.table.lies_on_cuda(_untyped(storage)):
            return original(storage)
        device.event(Sync("torch.save()"))  # it copies to the host
        return f"cuda:{device.rank.index}"

    return location_tag


def _restore(device: LogicalDevice, original: Callable[..., Any]) -> Callable[..., Any]:
    def restore_location(storage: Any, location: Any) -> Any:
        name = location.decode() if isinstance(location, bytes) else str(location)
        if not name.startswith("cuda"):
            return original(storage, location)
        wants_cuda(name)
        device.table.put_storage_on_cuda(_untyped(storage))
        return storage

    return restore_location


def _untyped(storage: Any) -> torch.UntypedStorage:
    untyped: torch.UntypedStorage = getattr(storage, "_untyped_storage", storage)
    return untyped


def stand_in_for_threads(device: LogicalDevice, patches: Patches) -> None:
    """Torch's modes belong to one thread: let each new one begin by entering them.

    What another thread does is no part of the step that is observed.
    """

    def entering(original: Callable[..., Any]) -> Callable[..., Any]:
        def bootstrap(self: threading.Thread) -> None:
            with device.in_this_thread():
                original(self)

        return bootstrap

    # Not run(): people override it.
    patches.replace(threading.Thread, "_bootstrap_inner", entering)


def stand_in_for_addresses(device: LogicalDevice, patches: Patches) -> None:
    """From here on somebody knows where a storage lies, so that it must stay there."""

    def telling(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def data_ptr(self: torch.UntypedStorage) -> Any:
            address = original(self)
            if (info := device.table.info_of(self)) is not None:
                info.is_ours = False
            return address

        return data_ptr

    patches.replace(torch.UntypedStorage, "data_ptr", telling)


_RANDOM = "torch.distributed.tensor._random"


def stand_in_for_sharding(device: CapturingDevice, patches: Patches) -> None:
    """Let DTensor and `fully_shard` do in C++ what they do with memory, which is the CPU's: they wrap
    local tensors, and free storages and make them anew.
    """
    patches.replace(torch.Tensor, "_make_wrapper_subclass", _wrapping)
    patches.replace(torch.UntypedStorage, "resize_", lambda original: _resizing(device, original))
    patches.replace(torch.Tensor, "copy_", _copying)
    _stand_in_for_random_numbers(patches)


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that says it is on CUDA makes autograd ask for a CUDA that is not linked."""

    def make_wrapper_subclass(*args: Any, **kwargs: Any) -> Any:
        where = kwargs.get("device")
        if where is not None and torch.device(where).type == "cuda":
            kwargs["device"] = torch.device("cpu")
        return original(*args, **kwargs)

    return staticmethod(make_wrapper_subclass)


def _copying(original: Callable[..., Any]) -> Callable[..., Any]:
    """DTensor runs operators on shapes first, on fake tensors that say they are on CUDA.

    `uniform_` copies there, and the method asks for a CUDA that is not linked, while its operator does not.
    """

    @wraps(original)
    def copy_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
            return original(self, *args, **kwargs)
        return torch.ops.aten.copy_.default(self, *args, **kwargs)

    return copy_


def _resizing(device: CapturingDevice, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type == "cpu":
            self.data_ptr()  # gives it memory of its own: torch resizes none that is shared until written
        if device.capturing is not None:
            device.capturing.resize(self, int(size))
        return original(self, size)

    return resize_


def _stand_in_for_random_numbers(patches: Patches) -> None:
    """They need a mesh, and few programs make one, while the import takes a second."""
    if _RANDOM in sys.modules:
        _draw_alone(patches)
        return

    def making(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            _draw_alone(patches)
            original(self, *args, **kwargs)

        return __init__

    patches.replace(DeviceMesh, "__init__", making)


def _draw_alone(patches: Patches) -> None:
    tracker = getattr(import_module(_RANDOM), "OffsetBasedRNGTracker", None)
    if getattr(tracker, "_distribute_region", None) is not _drawing_alone:
        patches.replace(tracker, "_distribute_region", lambda original: _drawing_alone)


@contextmanager
def _drawing_alone(
    tracker: Any, spec: Any, generator: torch.Generator | None = None
) -> Iterator[None]:
    """A random operator on this rank's part of a DTensor draws numbers of its own.

    DTensor moves the generator to this part's place, in the 16 bytes that CUDA's state has: the emulated device's
    state is the CPU's. torch 2.13 has an operator for it, `run_dtensor_rng_op`, where nobody gives a generator.
    """
    if torch.cuda.is_current_stream_capturing():
        raise EmulationLimit(
            "it is not known what a replay draws for a DTensor, whose generator is moved on the host"
        )
    if generator is None:
        yield
        return
    default = torch.default_generator
    kept = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(kept)
