"""The operators whose CUDA implementation waits for the device inside; nothing else shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct


class Seen(Struct, frozen=True):
    """What a condition may look at, of a recorded operator or of a call under way."""

    name: str  # "aten.normal.Tensor_Tensor"
    args: Sequence[object]
    kwargs: Mapping[str, object]
    dtypes: Sequence[str]  # of the tensor arguments, "float32"

    def argument(self, place: int, name: str, default: object) -> object:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


class HiddenSync(Struct, frozen=True):
    """When an operator waits, and why. `source` is the file and function of ATen where it does."""

    when: Callable[[Seen], bool]
    why: str
    source: str


def hidden_sync(call: Seen) -> HiddenSync | None:
    """The entry for a call on the device, if it waits."""
    entry = HIDDEN_SYNCS.get(call.name.split(".")[1] if "." in call.name else call.name)
    return entry if entry is not None and entry.when(call) else None


def _always(call: Seen) -> bool:
    return True


def _draws_without_replacement(call: Seen) -> bool:
    replacement = call.argument(2, "replacement", False)
    return not replacement or call.argument(1, "num_samples", None) == 1


def _has_no_range(call: Seen) -> bool:
    return call.argument(2, "min", 0) == call.argument(3, "max", 0)


def _has_tensor_deviation(call: Seen) -> bool:
    return call.name.endswith((".Tensor_Tensor", ".float_Tensor"))


def _checks_errors(call: Seen) -> bool:
    return any(arg is True for arg in call.args) or bool(call.kwargs.get("check_errors"))


def _is_not_bfloat16(call: Seen) -> bool:
    return any(dtype != "bfloat16" for dtype in call.dtypes[:2])


_LINALG = "aten/src/ATen/native/BatchLinearAlgebra.cpp"

HIDDEN_SYNCS = {
    "multinomial": HiddenSync(
        _draws_without_replacement,
        "checks on the host that the weights are valid before it draws",
        "aten/src/ATen/native/Distributions.cpp: multinomial_out",
    ),
    "normal": HiddenSync(
        _has_tensor_deviation,
        "checks on the host that no standard deviation is negative",
        "aten/src/ATen/native/DistributionTemplates.h: CHECK_NORMAL_TENSOR_STD",
    ),
    "histc": HiddenSync(
        _has_no_range,
        "reads the smallest and the largest value on the host, since no range was given",
        "aten/src/ATen/native/cuda/SummaryOps.cu: _histc_cuda_template",
    ),
    "_grouped_mm": HiddenSync(
        _is_not_bfloat16,
        "has a kernel for bfloat16 only, and copies the group offsets to the host otherwise",
        "aten/src/ATen/native/GroupedMMUtils.h: _grouped_mm_fallback",
    ),
    "_linalg_check_errors": HiddenSync(
        _always,
        "reads on the host whether the linear algebra before it succeeded",
        f"{_LINALG}: _linalg_check_errors",
    ),
    "_linalg_svd": HiddenSync(
        _always, "checks on the host whether it converged", f"{_LINALG}: _linalg_svd_out"
    ),
    "_linalg_eigh": HiddenSync(
        _always, "checks on the host whether it converged", f"{_LINALG}: _linalg_eigh_out"
    ),
    "linalg_inv_ex": HiddenSync(
        _checks_errors, "was asked to check for errors", f"{_LINALG}: linalg_inv_ex_out"
    ),
}
