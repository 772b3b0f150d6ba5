"""A recording in, the operators that wait for the device inside, without another sign of it, out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from graphdoctor.recording import Arg, Op, Recording
from graphdoctor.rule import Hit, Rule, at_op
from graphdoctor.rules._words import operator_words


class HiddenSync(Struct, frozen=True):
    """An operator whose CUDA implementation reads the device on the host, and where that is written."""

    when: Callable[[Op], bool]
    why: str
    source: str  # file and function of ATen


class HiddenSyncOperator(Rule):
    """An operator waits for the device inside.

    Some operators check their arguments, or find out a range, by reading values on the host before
    or after they launch their kernels. Nothing in the Python code shows it, but CUDA refuses the
    read while a graph is recorded.

    It is a false alarm only with a version of torch that has lost the check.

    Use the form that does not check: `torch.linalg.inv_ex` and the other `_ex` functions, `histc`
    with explicit bounds, `mean + std * torch.randn_like(mean)`, and for sampling one category `(p /
    torch.empty_like(p).exponential_()).argmax(-1)`.
    """

    id = "GD114"
    name = "hidden-sync-operator"
    effect = "capture-fails"
    fix = (
        "Use the form without the check: torch.linalg's *_ex functions, histc with min and max, or "
        "sampling through exponential_() and argmax."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for op in iteration.ops:
                entry = hidden_sync(op)
                if entry is not None:
                    yield at_op(iteration.index, op, f"{operator_words(op)} {entry.why}.")

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            weights = torch.softmax(x, dim=-1)
            return torch.multinomial(weights, 1)  # <- GD114

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            weights = torch.softmax(x, dim=-1)
            return (weights / torch.empty_like(weights).exponential_()).argmax(-1, keepdim=True)

        return step, (torch.randn(8, 16, device="cuda"),)


def hidden_sync(op: Op) -> HiddenSync | None:
    """The entry that applies to this call of an operator on the device."""
    entry = HIDDEN_SYNCS.get(op.base_name)
    if entry is None or not any(use.is_cuda for use in op.inputs):
        return None
    return entry if entry.when(op) else None


def _argument(op: Op, place: int, name: str, default: Arg) -> Arg:
    if len(op.args) > place:
        return op.args[place]
    return dict(op.kwargs).get(name, default)


def _always(op: Op) -> bool:
    return True


def _draws_without_replacement(op: Op) -> bool:
    replacement = _argument(op, 2, "replacement", False)
    return not replacement or _argument(op, 1, "num_samples", None) == 1


def _has_no_range(op: Op) -> bool:
    return _argument(op, 2, "min", 0) == _argument(op, 3, "max", 0)


def _has_tensor_deviation(op: Op) -> bool:
    return op.name.endswith((".Tensor_Tensor", ".float_Tensor"))


def _checks_errors(op: Op) -> bool:
    return any(arg is True for arg in op.args[1:]) or bool(dict(op.kwargs).get("check_errors"))


_LINALG = "aten/src/ATen/native/BatchLinearAlgebra.cpp"
_CHECKED = HiddenSync(
    _checks_errors, "checks on the host whether the factorisation succeeded", f"{_LINALG}: *_ex"
)

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
    "linalg_inv_ex": _CHECKED,
    "linalg_cholesky_ex": _CHECKED,
}
