"""The plain capture that verdicts are held against, on the emulated device in the GPU's place."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from graphdoctor.pipeline import open_setting, silent
from graphdoctor.values.options import AnalyzeOptions

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
if str(TRUTH) not in sys.path:
    sys.path.append(str(TRUTH))

from asking import training  # noqa: E402
from raw_capture import attempt, difference  # noqa: E402
from zoo import built  # noqa: E402


class Drops(torch.nn.Module):
    """State that changes in each step, and draws on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.BatchNorm1d(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class DrawsOnTheHost(Drops):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + random.random()


class ReadsOnTheHost(Drops):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * x.sum().item()


@pytest.mark.parametrize(
    ("model", "outcome"),
    [(Drops, "captured"), (DrawsOnTheHost, "differs"), (ReadsOnTheHost, "refused")],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_plain_capture_is_judged_by_replays_on_fresh_inputs(
    model: type[torch.nn.Module], outcome: str, mode: str
) -> None:
    made = built(model(), lambda: {"x": torch.rand(8, 4)})
    with open_setting(AnalyzeOptions(device="emulated"), silent):
        target = training(made, "cuda") if mode == "training" else (made.model, made.fresh)
        assert attempt(target)["raw"] == outcome


def test_a_replay_may_be_as_far_from_eager_as_rounding_is_but_no_farther() -> None:
    eager = [torch.tensor([1.0, 2.0])]
    near, far = [eager[0] + 1e-4], [eager[0] + 1e-1]
    assert difference(near, eager, eager)[0] == ""
    assert "off by 0.1" in difference(far, eager, eager)[0]


def test_a_replay_that_gives_no_number_is_wrong_where_eager_gives_one() -> None:
    eager = [torch.tensor([1.0, 2.0])]
    assert difference([torch.tensor([1.0, float("nan")])], eager, eager)[0] != ""
    nothing = [torch.tensor([1.0, float("nan")])]
    assert difference(nothing, nothing, nothing)[0] == ""
