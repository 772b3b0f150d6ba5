"""An output of a step -> a few of its values, enough to see that two runs computed different things."""

from __future__ import annotations

import torch

from graphdoctor.values.recording import Sample

_MOST = 256  # values, spread evenly over the tensor


def sample_of(value: object) -> Sample | None:
    """None for what is no plain tensor with values; the host may wait for the device here."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return None
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        flat = value.detach().resolve_conj().resolve_neg()
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
        step = max(1, -(-flat.numel() // _MOST))
        values = flat[::step].double().cpu()
        eps = torch.finfo(flat.dtype).eps if flat.dtype.is_floating_point else 0.0
        finite = flat[flat.isfinite()] if flat.dtype.is_floating_point else flat
        scale = float(finite.abs().max()) if finite.numel() and eps else 0.0
    return Sample(tuple(values.tolist()), scale=scale, eps=eps)
