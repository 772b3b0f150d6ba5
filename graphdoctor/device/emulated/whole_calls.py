"""What a CPU build takes apart and CUDA has one call for -> the kernels that CUDA's call launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphdoctor.device.observe.operators import WholeCall

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


def _rms_norm(*args: object, **kwargs: object) -> WholeCall:
    """aten/src/ATen/native/cuda/layer_norm_kernel.cu: backward, the input's gradient and the weight's."""
    return WholeCall(1, 2)


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
    torch.rms_norm: _rms_norm,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
}
