"""What a CPU build takes apart and CUDA has one call for is recorded with the kernels of that call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphdoctor.estimate import launches
from graphdoctor.values.recording import Iteration, Phase
from tests.support.diagnosing import recorded


def launched(example: Callable[[], object]) -> dict[Phase, int]:
    iteration: Iteration = recorded(example, iterations=2).captured[1]
    found: Counter[Phase] = Counter()
    for op in iteration.ops:
        found[op.phase] += launches(op)
    return dict(found)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_launch_kernels_for_each_step_of_each_layer(
    kind: type[nn.RNNBase],
) -> None:
    def example() -> object:
        model = kind(4, 8, num_layers=2, bidirectional=True, batch_first=True).cuda().eval()
        return model, (torch.randn(3, 5, 4, device="cuda"),)

    states = 2 if kind is nn.LSTM else 1  # zeros that they begin with
    assert launched(example) == {"forward": 2 * (5 * 2 * 2) + states}


def test_packed_sequences_have_the_steps_of_the_longest() -> None:
    def example() -> object:
        model = nn.GRU(4, 8).cuda().eval()
        packed = nn.utils.rnn.pack_sequence([torch.randn(7, 4), torch.randn(3, 4)]).to("cuda")
        return model, (packed,)

    assert launched(example)["forward"] >= 2 * 7
    assert launched(example)["forward"] <= 2 * 7 + 4


def test_a_norm_by_the_root_of_squares_is_one_kernel_and_two_backward() -> None:
    def example() -> object:
        norm = nn.RMSNorm(16).cuda()

        def step(x: torch.Tensor) -> None:
            norm.zero_grad()
            norm(x).sum().backward()

        inputs = (torch.randn(4, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state={"norm": norm})

    found = launched(example)
    assert found["forward"] == 1 + 1 + 1  # the sum, and the gradient that backward begins with
    assert found["backward"] == 2


def test_the_same_norm_written_by_hand_launches_each_of_its_operators() -> None:
    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def by_hand() -> object:
        return Norm().cuda().eval(), (torch.randn(4, 16, device="cuda"),)

    assert launched(by_hand) == {"forward": 5}


def test_a_norm_on_the_cpu_launches_nothing() -> None:
    def example() -> object:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            F.rms_norm(y, (4,))
            return x + 1

        inputs = (torch.randn(4, device="cuda"), torch.randn(2, 4))
        return SimpleNamespace(step=step, inputs=inputs, state={})

    assert launched(example) == {"forward": 1}


def test_a_recurrent_layer_runs_where_its_arguments_are_given_by_name() -> None:
    def example() -> object:
        layer = nn.RNN(4, 8, batch_first=True).cuda().eval()
        state = torch.zeros(1, 3, 8, device="cuda")

        def step(x: torch.Tensor) -> torch.Tensor:
            given = (x, state, layer._flat_weights, True, 1, 0.0)
            return torch.rnn_tanh(*given, train=False, bidirectional=False, batch_first=True)[0]

        return SimpleNamespace(
            step=step, inputs=lambda: (torch.randn(3, 5, 4, device="cuda"),), state=[layer]
        )

    assert launched(example)["forward"] > 0
