"""Whether a named condition on the arguments of a recorded call holds, and whether the call draws random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from graphdoctor.values.recording import Arg, Op, TensorUse

_MASKS = ("bool", "uint8")
_LONGEST_MODE = 2048  # elements that one block of threads sorts
_GATHERING = frozenset({"index", "_unsafe_index"})
INDEXING = frozenset({*_GATHERING, "index_put", "index_put_", "_index_put_impl_"})


class Condition(Struct, frozen=True):
    """When a fact holds: as people read it, and as a recording decides it."""

    words: str
    holds: Callable[[Op], bool]


def argument(op: Op, place: int, name: str, default: Arg = None) -> Arg:
    """An argument by its place, or by its name."""
    return op.args[place] if len(op.args) > place else dict(op.kwargs).get(name, default)


def has_mask_index(op: Op) -> bool:
    """Indexing by a mask on the device, whose number of hits the host must learn."""
    return any(use.dtype in _MASKS and use.is_cuda for use in _indices(op))


def is_masked_fill(op: Op) -> bool:
    """`y[mask] = 0.0`: one mask and one value on the host, which torch makes masked_fill.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, canDispatchToMaskedFill.
    """
    inputs = op.inputs
    if len(inputs) != 3 or inputs[1].dtype not in _MASKS:
        return False
    accumulates = any(arg is True for arg in op.args)
    return inputs[2].numel == 1 and not inputs[2].is_cuda and not accumulates


def indexed_from_host(op: Op) -> TensorUse | None:
    """The index, or the value to be stored, that lies on the host and is copied inside."""
    inputs = op.inputs
    if op.base_name not in INDEXING or not inputs or not inputs[0].is_cuda:
        return None
    for index in _indices(op):
        if not index.is_cuda and index.numel:
            return index
    stores = op.base_name not in _GATHERING and not inputs[-1].is_cuda
    return inputs[-1] if stores and not is_masked_fill(op) else None


def _indices(op: Op) -> tuple[TensorUse, ...]:
    if op.base_name not in INDEXING:
        return ()
    return op.inputs[1:] if op.base_name in _GATHERING else op.inputs[1:-1]


def _is_host_mask(use: TensorUse | None) -> bool:
    return use is not None and use.dtype in _MASKS


def has_nested(op: Op) -> bool:
    """Whether a nested tensor takes part."""
    named = op.base_name.startswith("_nested_") or op.base_name in _NESTED
    return named or any(use.nested for use in op.inputs)


_NESTED = frozenset({"to_padded_tensor"})


def _mixes_nested(op: Op) -> bool:
    """A nested tensor and one on the device that is none, whose sizes the host compares."""
    return any(use.nested for use in op.inputs) and any(
        use.is_cuda and use.shape and not use.nested for use in op.inputs
    )


def _counts_indices(op: Op) -> bool:
    """A sparse tensor that is not coalesced yet: its transposed, or one that was just made."""
    return any(use.sparse == "uncoalesced" for use in op.inputs)


def _is_sparse_product(op: Op) -> bool:
    """Of two COO tensors: an H200 captured the product of two CSR, whatever its replay is worth."""
    return sum(use.sparse in ("coalesced", "uncoalesced") for use in op.inputs) > 1


def _is_of_others(op: Op) -> bool:
    """Two tensors of one shape that are not one and the same part of one memory."""
    one, *rest = op.inputs
    same = (one.storage, one.offset, one.stride, one.dtype)
    return _has_equal_shapes(op) and any(
        (use.storage, use.offset, use.stride, use.dtype) != same for use in rest
    )


def indexes_by_mask(op: Op) -> bool:
    return has_mask_index(op) and not is_masked_fill(op)


def _checks_lengths(op: Op) -> bool:
    named = dict(op.kwargs)
    return named.get("lengths") is not None and not named.get("unsafe")


def _has_sorter(op: Op) -> bool:
    sorter = dict(op.kwargs).get("sorter")
    return isinstance(sorter, TensorUse) and sorter.numel > 0


def _is_not_empty(op: Op) -> bool:
    return all(use.numel for use in op.inputs)


def _has_equal_shapes(op: Op) -> bool:
    shapes = {use.shape for use in op.inputs}
    return len(shapes) == 1


def _searches_long_dimension(op: Op) -> bool:
    """Source: aten/src/ATen/native/cuda/TensorModeKernel.cpp, mode_kernel_impl."""
    use, place = op.inputs[0], argument(op, 1, "dim", -1)
    return bool(use.shape) and isinstance(place, int) and use.shape[place] > _LONGEST_MODE


def _sorts_test_elements(op: Op) -> bool:
    """Source: aten/src/ATen/native/TensorCompare.cpp, isin_Tensor_Tensor_out."""
    elements, tests = argument(op, 0, "elements"), argument(op, 1, "test_elements")
    if not isinstance(elements, TensorUse) or not isinstance(tests, TensorUse):
        return False
    unique = dict(op.kwargs).get("assume_unique")
    return not unique and tests.numel >= 10.0 * elements.numel**0.145


CONDITIONS: Mapping[str, Condition] = {
    "always": Condition("always", lambda op: True),
    "mask-index": Condition("with a mask among the indices", indexes_by_mask),
    "host-index": Condition(
        "with an index that is no mask, or a value, on the host",
        lambda op: (use := indexed_from_host(op)) is not None and not _is_host_mask(use),
    ),
    "host-mask": Condition(
        "with a mask on the host among the indices",
        lambda op: _is_host_mask(indexed_from_host(op)),
    ),
    "value-on-device": Condition(
        "with the value in a tensor on the device",
        lambda op: bool(op.inputs) and op.inputs[-1].is_cuda,
    ),
    "no-output-size": Condition(
        "without `output_size`", lambda op: dict(op.kwargs).get("output_size") is None
    ),
    "no-range": Condition(
        "without `min` and `max`", lambda op: argument(op, 2, "min", 0) == argument(op, 3, "max", 0)
    ),
    "check-errors": Condition(
        "with `check_errors=True`", lambda op: bool(dict(op.kwargs).get("check_errors"))
    ),
    "check-lengths": Condition("with `lengths` and without `unsafe=True`", _checks_lengths),
    "sorter": Condition("with `sorter`", _has_sorter),
    "batched": Condition(
        "with a batch of matrices",
        lambda op: any(len(use.shape) > 2 and use.numel for use in op.inputs),
    ),
    "not-empty": Condition("with elements", _is_not_empty),
    "other-of-equal-shape": Condition(
        "with two tensors of one shape, unless they are one and the same",
        lambda op: _is_of_others(op) and _is_not_empty(op),
    ),
    "nested": Condition("with a nested tensor", lambda op: any(use.nested for use in op.inputs)),
    "nested-and-dense": Condition("with a nested and another tensor", _mixes_nested),
    "uncoalesced": Condition(
        "with a sparse tensor that is not coalesced, such as a transposed one", _counts_indices
    ),
    "sparse-product": Condition("of two sparse COO tensors", _is_sparse_product),
    "by-columns": Condition(
        "with a sparse tensor compressed by columns, such as a transposed CSR",
        lambda op: any(use.sparse == "by-columns" for use in op.inputs),
    ),
    "per-channel": Condition(
        "per channel", lambda op: argument(op, 11, "per_row_fake_quant") is True
    ),
    "integer-zero-point": Condition(
        "with integers as zero points",
        lambda op: len(op.inputs) > 2 and not op.inputs[2].dtype.startswith(("float", "bfloat")),
    ),
    "not-square": Condition(
        "with a matrix that is not square",
        lambda op: any(use.shape[-2:-1] != use.shape[-1:] for use in op.inputs[:1]),
    ),
    "long-dimension": Condition(
        f"with more than {_LONGEST_MODE} elements in the dimension", _searches_long_dimension
    ),
    "not-bfloat16": Condition(
        "with another dtype than bfloat16",
        lambda op: any(use.dtype != "bfloat16" for use in op.inputs[:2]),
    ),
    "many-test-elements": Condition(
        "with many test elements (more than 10 times `elements.numel() ** 0.145`)",
        _sorts_test_elements,
    ),
}


class _Switch(NamedTuple):
    """An argument that turns the drawing off where it is False or 0."""

    place: int
    name: str
    default: object = None


def _dropout_p(place: int) -> tuple[_Switch, ...]:
    return (_Switch(place, "dropout_p", 0.0),)


_DROPOUT = (_Switch(1, "p"), _Switch(2, "train"))


def _recurrent(place: int) -> tuple[_Switch, ...]:
    return _Switch(place, "dropout"), _Switch(place + 1, "train")


# By the name without the namespace; with the overload where its arguments stand elsewhere.
_SWITCHES: Mapping[str, tuple[_Switch, ...]] = {
    "_cudnn_attention_forward": _dropout_p(9),
    "_cudnn_rnn": _recurrent(11),
    "_efficient_attention_forward": _dropout_p(8),
    "_flash_attention_forward": _dropout_p(7),
    "_flash_attention_forward_no_dropout_inplace": _dropout_p(8),
    "_scaled_dot_product_attention_math": _dropout_p(4),
    "_scaled_dot_product_attention_math_for_mps": _dropout_p(4),
    "_scaled_dot_product_cudnn_attention": _dropout_p(5),
    "_scaled_dot_product_efficient_attention": _dropout_p(5),
    "_scaled_dot_product_flash_attention": _dropout_p(3),
    "_scaled_dot_product_flash_attention.quantized": _dropout_p(6),
    "_scaled_dot_product_flash_attention_for_cpu": _dropout_p(3),
    "_scaled_dot_product_fused_attention_overrideable": _dropout_p(4),
    "_triton_scaled_dot_attention": _dropout_p(3),
    "alpha_dropout": _DROPOUT,
    "alpha_dropout_": _DROPOUT,
    "dropout": _DROPOUT,
    "dropout_": _DROPOUT,
    "feature_alpha_dropout": _DROPOUT,
    "feature_alpha_dropout_": _DROPOUT,
    "feature_dropout": _DROPOUT,
    "feature_dropout_": _DROPOUT,
    "gru.data": _recurrent(6),
    "gru.input": _recurrent(5),
    "lstm.data": _recurrent(6),
    "lstm.input": _recurrent(5),
    "miopen_rnn": _recurrent(9),
    "native_dropout": (_Switch(2, "train"),),  # with p=0 it draws, and keeps everything
    "rnn_relu.data": _recurrent(6),
    "rnn_relu.input": _recurrent(5),
    "rnn_tanh.data": _recurrent(6),
    "rnn_tanh.input": _recurrent(5),
    "rrelu": (_Switch(3, "training", False),),
    "rrelu_": (_Switch(3, "training", False),),
    "rrelu_with_noise": (_Switch(4, "training", False),),
    "rrelu_with_noise_": (_Switch(4, "training", False),),
    "rrelu_with_noise_functional": (_Switch(4, "training", False),),
    "scaled_dot_product_attention": _dropout_p(4),
}
# They are handed a seed, or only choose a kernel; so is the backward of any of the above.
_NEVER = frozenset({"_fill_mem_eff_dropout_mask_", "_fused_sdp_choice"})


def draws(op: Op) -> bool:
    """Whether this call draws random numbers. Untagged operators that draw are not known."""
    return op.may_draw and call_draws(op.name, op.args, dict(op.kwargs))


def call_draws(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call of an operator with the tag draws; `name` as in "aten.native_dropout.default"."""
    _, _, rest = name.partition(".")
    base, _, _ = rest.partition(".")
    if base in _NEVER or base.endswith("_backward"):
        return False
    return all(
        _is_on(switch, args, kwargs) for switch in _SWITCHES.get(rest, _SWITCHES.get(base, ()))
    )


def _is_on(switch: _Switch, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """None is on: "train=None" of native_dropout trains; so is what only a run shows."""
    given = kwargs.get(switch.name, switch.default)
    if len(args) > switch.place:
        given = args[switch.place]
    return given is None or not isinstance(given, (bool, int, float)) or bool(given)
