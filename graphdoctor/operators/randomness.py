"""A recorded operator call -> whether it draws random numbers; data, no torch.

torch tags an operator that may draw, whatever it is called with: attention has the tag for the sake of
its dropout, which most calls do without. Source: ATen's native_functions.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphdoctor.values.recording import Op


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
