"""Run torch functions that name a device, or that CUDA runs otherwise, on the CPU, and place their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

from graphdoctor.device.emulated.logical import CPU, LogicalDevice, MoveTo, copy_to, wants_cuda
from graphdoctor.device.observe.dispatch import LogicalDeviceMode
from graphdoctor.device.observe.host_calls import torch_version
from graphdoctor.device.observe.operators import WholeCall
from graphdoctor.values.host_events import AttentionDropout, PinnedAllocation

_PARSE_TO = torch._C._nn._parse_to
_ATTENTION = torch._C._nn.scaled_dot_product_attention


class LogicalFunctionMode(TorchFunctionMode):
    """Answers for devices, and turns calls that name a CUDA device into calls the CPU can run."""

    def __init__(self, device: LogicalDevice, dispatch: LogicalDeviceMode) -> None:
        super().__init__()
        self.device = device
        self.dispatch = dispatch
        self.constructors = default_device._device_constructors()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        if (
            func is _PARSE_TO
        ):  # it only reads its arguments, and takes a number for an accelerator's
            args = tuple(map(_device_of_number, args[:1])) + args[1:]
            return func(*args, **{name: _device_of_number(one) for name, one in kwargs.items()})
        if func is torch.device and args and isinstance(args[0], int):
            return func("cuda", *args)
        if "device" in kwargs and kwargs["device"] is not None:
            return call_on(self.device, func, args, kwargs, kwargs["device"])
        if func in self.constructors:
            default = default_device.CURRENT_DEVICE
            if default is not None and wants_cuda(default) is not None:
                return call_on(self.device, func, args, kwargs, default)
            if kwargs.get("pin_memory"):
                return call_on(self.device, func, args, kwargs, CPU)
        if func is _ATTENTION:
            _tell_of_dropout(self.device, *args, **kwargs)
        path = CUDA_PATHS.get(func)
        if path is not None:
            return path(self.device, *args, **kwargs)
        handler = own_handler(types)
        if handler is not None:
            with self:  # its code names devices as any other does
                return handler(func, types, args, kwargs)
        whole = whole_call(func, args, kwargs)
        if whole is None:
            return self._run_asking(func, args, kwargs)
        self.dispatch.whole = whole
        try:
            return self._run_asking(func, args, kwargs)
        finally:
            self.dispatch.whole = None

    def _run_asking(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a C function that names no device: what it makes lies where its arguments lie."""
        dispatch = self.dispatch
        before = dispatch.asking
        dispatch.asking = (args, kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            dispatch.asking = before


def own_handler(types: Any) -> Callable[..., Any] | None:
    """What the first tensor subclass with code of its own makes of a torch function; None without one."""
    if not types or not torch._C._is_torch_function_enabled():  # that code is running
        return None
    for kind in types:
        found: Callable[..., Any] = kind.__torch_function__
        if getattr(found, "__func__", found) not in _TORCHS_HANDLERS:
            return found
    return None


_TORCHS_HANDLERS: tuple[Any, ...] = (
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch._C._disabled_torch_function_impl,
)


def _device_of_number(given: Any) -> Any:
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return torch.device("cuda", given) if is_number else given


def call_on(
    device: LogicalDevice, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: Any
) -> Any:
    """Call a function that names a device, with its results on the logical one."""
    cuda = wants_cuda(where)
    if cuda is None:
        return func(*args, **kwargs)
    kwargs = {**kwargs, "device": CPU}
    if kwargs.pop("pin_memory", False):
        device.event(PinnedAllocation(f"{func.__name__}(pin_memory=True)"))
        result = device.run_with_target(False, func, args, kwargs)
        device.table.info(result).pinned = True
        return result
    if func in FROM_HOST_DATA and cuda:
        # torch.tensor(data, device="cuda"): made on the CPU, then copied over, as torch
        # does it.
        data = kwargs.get("data", kwargs.get("obj", args[-1] if args else None))
        if isinstance(data, torch.Tensor) and device.table.is_cuda(data):
            return device.run_with_target(True, func, args, kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        made = device.run_with_target(False, func, args, kwargs)
        moved = copy_to(device, made, MoveTo(cuda=True))
        return moved.requires_grad_() if requires_grad else moved
    return device.run_with_target(cuda, func, args, kwargs)


FROM_HOST_DATA = frozenset(
    {
        torch.tensor, torch.as_tensor, torch.asarray, torch._C.TensorBase.new_tensor,
        torch.sparse_coo_tensor, torch.sparse_compressed_tensor, torch.sparse_csr_tensor,
        torch.sparse_csc_tensor, torch.sparse_bsr_tensor, torch.sparse_bsc_tensor,
    }
)  # fmt: skip


def _one_hot(device: LogicalDevice, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """With a number of classes CUDA checks nothing on the host; without, it reads the largest.

    Source: aten/src/ATen/native/Onehot.cpp. Measured with torch 2.11.0 on an H200.
    """
    if not device.table.is_cuda(tensor) or not (num_classes > 0 or tensor.numel()):
        return torch._C._nn.one_hot(tensor, num_classes)
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    if num_classes <= 0:
        return torch._C._nn.one_hot(tensor, num_classes)  # raises
    shape = (*tensor.shape, num_classes)
    kwargs = {"dtype": torch.long, "device": CPU}
    zeros = device.run_with_target(True, torch.zeros, (shape,), kwargs)
    made: torch.Tensor = zeros.scatter_(-1, tensor.unsqueeze(-1), 1)
    return made


def _tell_of_dropout(
    device: LogicalDevice,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: object,
) -> None:
    """On the CPU one kernel drops elements, and on a GPU each has random numbers of its own."""
    if not dropout_p or not device.table.is_cuda(query):
        return
    what = "no mask"
    if attn_mask is not None:
        dtype = str(attn_mask.dtype).removeprefix("torch.")
        what = f"a mask of {list(attn_mask.shape)} {dtype}"
        if not _is_dense_inside(attn_mask):
            what += f" with stride {attn_mask.stride(-1)} in the last dimension"
    dims = query.shape[-1], value.shape[-1]
    kernel = _kernel_of_attention(query, attn_mask, dims, capability=device.capability)
    mask = f"{what}{', is_causal' if is_causal else ''}"
    device.event(AttentionDropout(f"{kernel} attention", mask=mask))


def _kernel_of_attention(
    query: torch.Tensor,
    mask: torch.Tensor | None,
    head_dims: tuple[int, int],
    *,
    capability: tuple[int, int],
) -> str:
    """Which kernel a GPU takes, as far as that depends on the mask.

    Source: check_last_dim_stride_equals_1_dense in aten/src/ATen/native/transformers/sdp_utils_cpp.h, and
    benchmarks/truth/attention_dropout.py on an H200 with torch 2.11.0: with a mask that fused kernels take
    and without one it draws alike, by the efficient kernel in float32, and by cuDNN's in half precision, which
    check_cudnn_tensor_shapes in cuda/sdp_utils.cpp keeps to heads of some sizes.
    """
    if query.dtype not in _FUSED or (mask is not None and not _is_dense_inside(mask)):
        return "math"
    if query.dtype == torch.float32:
        return "efficient"
    fits = all(size % 8 == 0 and size <= _WIDEST_OF_CUDNN for size in head_dims)
    if fits and capability == (9, 0) and torch_version() >= (2, 11):
        return "cuDNN"
    return "flash" if mask is None else "efficient"


_WIDEST_OF_CUDNN = 256
_FUSED = frozenset({torch.float32, torch.float16, torch.bfloat16})


def _is_dense_inside(mask: torch.Tensor) -> bool:
    return mask.dim() == 0 or mask.stride(-1) == 1


def _address(device: LogicalDevice, tensor: torch.Tensor) -> int:
    """From here on somebody knows it, so that the memory must stay where it is."""
    address: int = tensor.data_ptr()
    device.table.info(tensor).is_ours = False
    return address


# What the CPU's code would read or give away, and CUDA's does not -> what is run instead.
CUDA_PATHS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch._C._nn.one_hot: _one_hot,
    torch.Tensor.data_ptr: _address,
}


# cuDNN's recurrent layers launch so many kernels for each step of the sequence, forward and backward. Source: a
# profiler on an H200 counted 399 for two GRU layers of 96 steps, and 1,413 for two LSTM layers of 128 steps, trained.
_STEP, _STEP_BACK = 2, 3


def whole_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WholeCall | None:
    """The call of CUDA's that this torch function is there; None where both run the same operators."""
    found = _WHOLE.get(func)
    try:
        return found(*args, **kwargs) if found is not None else None
    except (IndexError, TypeError):  # arguments by name, or a call that torch refuses
        return None


def _recurrent(given: torch.Tensor, second: Any, *args: Any, **kwargs: Any) -> WholeCall:
    """torch.lstm and the others take a padded batch, or the rows and the batch's size at each step."""
    packed = isinstance(second, torch.Tensor) and second.dim() == 1 and second.dtype is torch.long
    if packed:
        layers, both_ways, steps = args[3], args[6], len(second)
    else:
        layers, both_ways = args[2], args[5]
        steps = given.shape[1 if args[6] else 0]
    runs = steps * layers * (2 if both_ways else 1)
    return WholeCall(_STEP * runs, _STEP_BACK * runs)


_WHOLE: Mapping[Callable[..., Any], Callable[..., WholeCall]] = {
    # aten/src/ATen/native/cuda/layer_norm_kernel.cu: backward, the input's gradient and the weight's.
    torch.rms_norm: lambda *args, **kwargs: WholeCall(1, 2),
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
}
