"""A CUDA build of torch on a machine without a GPU: nn.RNN asks for cuDNN, which knows no CPU tensors."""

from __future__ import annotations

import pytest
import torch

import graphdoctor


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_are_analysed_where_torch_has_cudnn(
    kind: type[torch.nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if built with cuDNN: every question on the way to `_cudnn_rnn_flatten_weight` says yes."""
    asked = torch.backends.cudnn.is_acceptable.__globals__
    monkeypatch.setitem(asked, "is_available", lambda: True)
    monkeypatch.setitem(asked, "_init", lambda: True)
    monkeypatch.setattr(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)

    def refused(*args: object) -> None:
        raise NotImplementedError("Could not run 'aten::_cudnn_rnn_flatten_weight'")

    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", refused)

    def target() -> object:
        return kind(8, 8, num_layers=2).cuda().eval(), (torch.randn(5, 2, 8).cuda(),)

    report = graphdoctor.analyze(target, device="emulated", strategies=())
    assert report.verdict == "safe"
