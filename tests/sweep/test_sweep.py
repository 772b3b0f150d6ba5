"""A sweep: inputs at other batch sizes, a row for each, and where the gain ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from graphdoctor.sweep import sweep_target
from graphdoctor.sweep.run import gain_end, row_of
from graphdoctor.target import Inputs, Target, from_object, named_tensors
from graphdoctor.target.inputs.rebatch import find_batch, rebatch, shapes_of
from graphdoctor.values.errors import UsageError, UserCodeError
from graphdoctor.values.figures import Range
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.sweep import RowStatus, Sweep, SweepRow
from tests.support.reports import ESTIMATE, MEASUREMENT, SAFE
from tests.support.sweeps import sweep_object

EMULATED = AnalyzeOptions(device="emulated", iterations=2)


def target_of(*args: object, step: Callable[..., object] | None = None, **kwargs: object) -> Target:
    chosen = step or (lambda *args, **kwargs: None)
    return from_object(chosen, *args, **kwargs)


def at(size: int, *args: object, **kwargs: object) -> Inputs:
    """These inputs at another batch size."""
    target = target_of(*args, **kwargs)
    plan = find_batch(target, target.fresh_inputs())
    return rebatch(target, plan, size).fresh_inputs()


def swept(subject: object, *inputs: object, batches: tuple[int, ...]) -> Sweep:
    return sweep_object(subject, *inputs, batches=batches, options=EMULATED)


def statuses(sweep: Sweep) -> dict[int, str]:
    return {row.batch: row.status for row in sweep.rows}


# Inputs at another batch size


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_what_shares_the_leading_dimension_changes_and_the_rest_stays(size: int) -> None:
    inputs = at(size, torch.randn(3, 5), torch.tensor([4, 0, 2]), torch.randn(5), scale=2.0)
    assert shapes_of(inputs) == {"inputs[0]": (size, 5), "inputs[1]": (size,), "inputs[2]": (5,)}
    assert inputs.kwargs == {"scale": 2.0}


def test_integers_are_repeated_and_never_drawn() -> None:
    target = target_of(torch.randn(3, 5), torch.tensor([40, 0, 7]))
    again = rebatch(target, find_batch(target, target.fresh_inputs()), 9)
    for _ in range(3):
        labels = again.fresh_inputs().args[1]
        assert isinstance(labels, torch.Tensor)
        assert 0 <= int(labels.min()) <= int(labels.max()) <= 40


def test_a_row_stays_with_its_label_and_repeated_rows_have_values_of_their_own() -> None:
    data, label = torch.tensor([[-1.0, 3.0], [2.0, -5.0]]), torch.tensor([10, 20])
    target = Target("", "", "", "inference", lambda: None, lambda: Inputs((data, label)), {})
    inputs = rebatch(target, find_batch(target, target.fresh_inputs()), 4).fresh_inputs()
    rows, labels = inputs.args
    assert isinstance(rows, torch.Tensor)
    assert isinstance(labels, torch.Tensor)
    assert labels.tolist() == [10, 10, 20, 20]
    assert rows[0].tolist() == data[0].tolist()
    assert rows[2].tolist() == data[1].tolist()
    assert rows[1].tolist() != data[0].tolist()


def test_lengths_that_descend_still_descend() -> None:
    lengths = at(8, torch.randn(3, 5), torch.tensor([5, 3, 2])).args[1]
    assert isinstance(lengths, torch.Tensor)
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)
    assert lengths[0] == 5


def test_layout_in_memory_gradients_and_aliases_are_kept() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    row = torch.randn(1, 6).expand(2, 6)
    first, again, expanded = at(5, image, image, row).args
    assert isinstance(first, torch.Tensor)
    assert isinstance(expanded, torch.Tensor)
    assert first is again
    assert first.requires_grad
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert (expanded.shape, expanded.stride(0)) == ((5, 6), 0)


def test_a_causal_mask_of_the_batch_s_size_by_chance_stays() -> None:
    mask = torch.ones(4, 4).tril().bool()
    assert shapes_of(at(2, torch.randn(4, 4, 8), mask))["inputs[1]"] == (4, 4)


def test_a_number_called_batch_size_follows() -> None:
    assert at(8, torch.randn(2, 3), batch_size=2).kwargs == {"batch_size": 8}
    assert at(8, torch.randn(2, 3), batch_size=7, heads=2).kwargs == {"batch_size": 7, "heads": 2}


def test_a_parameter_that_is_passed_in_is_no_input() -> None:
    weight = nn.Parameter(torch.randn(2, 3))
    inputs = at(6, torch.randn(2, 3), weight)
    assert inputs.args[1] is weight
    assert shapes_of(inputs)["inputs[0]"] == (6, 3)


def test_disagreement_and_state_of_the_batch_s_size_are_noted() -> None:
    model = nn.Linear(3, 3)
    model.register_buffer("cache", torch.zeros(2, 7))
    target = from_object(model, torch.randn(2, 3), torch.randn(5, 3))
    plan = find_batch(target, target.fresh_inputs())
    assert plan.size == 2
    disagree, state = plan.notes
    assert "disagree (2, 5); 2 was used as the batch size" in disagree
    assert "model.cache (2x7)" in state
    assert "weight" not in state


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no tensor with a dimension"),
        ((torch.tensor(1.0), 3), "no tensor with a dimension"),
        ((torch.zeros(0, 3),), "empty batch"),
        ((torch.eye(3).to_sparse(),), "not a dense tensor"),
        (
            (pack_padded_sequence(torch.randn(4, 2, 3), [4, 2]),),
            r"inputs\[0\] is a packed sequence",
        ),
        (([torch.rand(3, 8, 8), torch.rand(3, 9, 9)],), "list of images"),
        (
            (torch.arange(12), torch.tensor([0, 3, 7]), torch.randn(3, 2)),
            r"inputs\[1\] looks like offsets",
        ),
    ],
)
def test_what_cannot_be_rebatched_is_one_sentence(args: tuple[object, ...], message: str) -> None:
    target = Target("", "", "", "inference", lambda: None, lambda: Inputs(args), {})
    with pytest.raises(UsageError, match=message) as caught:
        find_batch(target, target.fresh_inputs())
    assert "\n" not in str(caught.value)


# Rows


def test_each_size_runs_with_its_rows_and_is_predicted(tmp_path: Path) -> None:
    seen = tmp_path / "seen"  # what a step keeps in memory is put back after it

    class Model(nn.Sequential):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            with seen.open("a") as file:
                file.write(f"{data.shape[0]}\n")
            return torch.relu(super().forward(data))

    sweep = swept(Model(nn.Linear(8, 8), nn.Linear(8, 8)).eval(), torch.randn(3, 8), batches=(4, 1))
    assert set(seen.read_text().split()) == {"1", "3", "4"}
    assert statuses(sweep) == {1: "predicted", 4: "predicted"}
    assert sweep.described_batch == 3
    for row in sweep.rows:
        assert row.verdict == "safe"
        assert row.scope == "whole step"
        assert row.eager_us is not None
        assert row.eager_samples_per_s is not None
        assert row.eager_samples_per_s.mid == pytest.approx(row.batch / row.eager_us.mid * 1e6)


def test_everything_is_afterwards_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(data: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    roots = {"model": model, "optimizer": optimizer}
    before = {path: tensor.clone() for path, tensor in named_tensors(roots).items()}
    described = SimpleNamespace(step=step, inputs=(torch.randn(4, 4),), state=roots)
    random = torch.get_rng_state()
    sweep = swept(described, batches=(2, 8))
    assert statuses(sweep) == {2: "predicted", 8: "predicted"}
    after = named_tensors(roots)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[path], before[path]) for path in before)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


def test_a_cache_made_for_the_batch_fails_with_its_name_and_the_rest_goes_on() -> None:
    class Cached(nn.Module):
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 8))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.cache.copy_(data)
            return self.cache * 2

    sweep = swept(Cached().eval(), torch.randn(4, 8), batches=(2, 4, 8))
    assert statuses(sweep) == {2: "failed", 4: "predicted", 8: "failed"}
    assert "RuntimeError" in sweep.rows[0].reason
    assert "model.cache (4x8)" in sweep.rows[0].reason
    assert sweep.rows[1].reason == ""
    assert "batch 2, 8" in sweep.end.sentence


def test_a_cache_that_broadcasting_hides_is_found() -> None:
    class Added(nn.Module):
        bias: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", torch.zeros(4, 8))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return data + self.bias

    sweep = swept(Added().eval(), torch.randn(4, 8), batches=(1, 4))
    assert statuses(sweep) == {1: "failed", 4: "predicted"}
    assert "output keeps the 4 rows" in sweep.rows[0].reason


def test_memory_that_runs_out_is_a_row_and_stops_larger_sizes() -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if data.shape[0] >= 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return data * 2

    sweep = swept(step, torch.randn(2, 8, device="cpu"), batches=(1, 4, 8))
    assert statuses(sweep) == {1: "predicted", 4: "out-of-memory", 8: "not-run"}
    assert "2.00 GiB" in sweep.rows[1].reason
    assert "batch 4" in sweep.rows[2].reason


def test_a_step_that_fails_as_described_is_the_user_s_error() -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    with pytest.raises(UserCodeError, match="not today"):
        swept(step, torch.randn(2, 8), batches=(1, 2))


def test_a_step_without_work_on_the_device_is_a_row_that_says_so() -> None:
    sweep = swept(lambda data: data.shape, torch.randn(2, 8), batches=(1, 2))
    assert statuses(sweep) == {1: "failed", 2: "failed"}
    assert "no operator on the CUDA device" in sweep.rows[0].reason
    assert sweep.end.kind == "unknown"


def test_where_no_graph_remains_there_is_no_speed_up() -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        return data * data.sum().item()

    sweep = swept(step, torch.randn(2, 8), batches=(1, 2))
    assert statuses(sweep) == {1: "no-graph", 2: "no-graph"}
    row = sweep.rows[0]
    assert (row.verdict, row.scope, row.speedup, row.graph_us) == ("unsafe", "", None, None)
    assert row.eager_us is not None
    assert sweep.end.kind == "no-graph"
    assert "(GD101 host-read)" in row.reason


def test_what_was_measured_stands_before_what_was_predicted() -> None:
    measured = MEASUREMENT
    made = row_of(8, replace(SAFE, measurement=measured, estimate=ESTIMATE))
    assert made.status == "measured"
    assert made.speedup == Range(measured.speedup_low, measured.speedup, measured.speedup_high)
    assert made.graph_us == Range(*[measured.graph_us] * 3)
    assert made.launch_bound_share == ESTIMATE.launch_bound_share
    assert made.graph_samples_per_s is not None
    assert made.graph_samples_per_s.mid == pytest.approx(8e6 / measured.graph_us)


# Functions that take a batch size

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, rows=2):
        super().__init__()
        self.register_buffer("cache", torch.zeros(rows, 8))

    def forward(self, data):
        self.cache.copy_(data)
        return self.cache * 2
"""
FORMS = {
    "graphdoctor_target(batch_size=...)": """
def graphdoctor_target(batch_size=2):
    return Model(batch_size).eval(), (torch.randn(batch_size, 8),)
""",
    "get_model(batch_size=...) and get_inputs(batch=...)": """
def get_model(batch_size=2):
    return Model(batch_size)

def get_inputs(batch: int = 2):
    return [torch.randn(batch, 8)]
""",
    "get_model(batch_size=...)": """
def get_model(batch_size=2):
    return Model(batch_size)

def get_inputs():
    return [torch.randn(2, 8)]
""",
}


@pytest.mark.parametrize("called", FORMS)
def test_functions_that_take_a_batch_size_are_given_it(tmp_path: Path, called: str) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL + FORMS[called])
    sweep = sweep_target(str(file), (1, 2, 6), EMULATED, lambda doing: None)
    assert statuses(sweep) == {1: "predicted", 2: "predicted", 6: "predicted"}
    assert sweep.sized_by == called
    assert sweep.inputs == ()


def test_a_named_function_is_given_it_and_a_step_s_batch_is_its_data(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        MODEL
        + """
def large(batch_size=2):
    return Model(batch_size).eval(), (torch.randn(batch_size, 8),)

def step(batch):
    return batch * 2

def get_inputs():
    return [torch.randn(2, 8)]
"""
    )
    large = sweep_target(f"{file}:large", (4,), EMULATED, lambda doing: None)
    assert (large.sized_by, statuses(large)) == ("large(batch_size=...)", {4: "predicted"})
    step = sweep_target(f"{file}:step", (4,), EMULATED, lambda doing: None)
    assert (step.sized_by, statuses(step)) == ("", {4: "predicted"})


def test_given_inputs_are_the_ones_to_change(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nModel = torch.nn.ReLU\n"
        "def get_inputs(batch_size=2):\n    return [torch.randn(batch_size, 8)]\n"
    )
    options = AnalyzeOptions(device="emulated", iterations=2, inputs=("3x5",))
    sweep = sweep_target(str(file), (6,), options, lambda doing: None)
    assert (sweep.sized_by, sweep.described_batch) == ("", 3)
    assert [found.shape for found in sweep.inputs] == [(3, 5)]


# Where the gain ends


def row(batch: int, low: float, mid: float, high: float, status: RowStatus = "measured") -> Any:
    return SweepRow(batch=batch, status=status, speedup=Range(low, mid, high))


FAST, SLOW, WIDE = (1.5, 2.0, 2.5), (0.98, 1.0, 1.02), (0.9, 1.2, 1.4)


@pytest.mark.parametrize(
    ("speedups", "kind", "batch", "words"),
    [
        ((FAST, FAST, SLOW, SLOW), "ends", 4, "From batch 4 on, a graph brings less than 1.05x."),
        ((FAST, SLOW, FAST), "does-not-end", None, "2.00x (1.50 to 2.50) at batch 4."),
        ((SLOW, SLOW), "never-there", 1, "less than 1.05x at every size"),
        ((FAST, WIDE, WIDE), "cannot-tell", None, "from batch 2 on"),
        ((FAST, SLOW, WIDE), "cannot-tell", None, "from batch 2 on"),
        ((WIDE, SLOW), "ends", 2, "From batch 2 on"),
        ((FAST,), "does-not-end", None, "at batch 1."),
    ],
)
def test_the_gain_ends_where_the_upper_bound_stays_below(
    speedups: tuple[tuple[float, float, float], ...], kind: str, batch: int | None, words: str
) -> None:
    end = gain_end([row(2**index, *speedup) for index, speedup in enumerate(speedups)])
    assert (end.kind, end.batch) == (kind, batch)
    assert words in end.sentence


def test_sizes_without_a_speed_up_are_named_and_predictions_called_so() -> None:
    failed = SweepRow(batch=8, status="failed", reason="no")
    end = gain_end([row(1, *FAST, status="predicted"), row(4, *SLOW, status="predicted"), failed])
    assert (end.kind, end.batch) == ("ends", 4)
    assert "(predicted)" in end.sentence
    assert "Nothing can be said of batch 8." in end.sentence
    assert gain_end([failed]).kind == "unknown"


@pytest.mark.gpu
def test_on_a_gpu_each_size_is_measured() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).cuda().eval()
    options = AnalyzeOptions(device="cuda", iterations=2)
    sweep = sweep_object(model, torch.randn(1, 64, device="cuda"), batches=(1, 8), options=options)
    assert statuses(sweep) == {1: "measured", 8: "measured"}
    first = sweep.rows[0]
    assert first.speedup is not None
    assert first.speedup.low > 1
    assert first.device_busy_share is not None
    assert 0 < first.device_busy_share.mid <= 1
