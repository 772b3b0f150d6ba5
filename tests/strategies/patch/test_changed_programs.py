"""What is proposed for a program applies to it, and the changed program gives the same results."""

from __future__ import annotations

import contextlib
import io
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphdoctor.pipeline import diagnose_program
from graphdoctor.strategies.patch.made import Choice, tried, with_patch
from graphdoctor.strategies.patch.rerun import MOST_STEPS, Task, reruns
from graphdoctor.strategies.patch.source import changed_sources
from graphdoctor.target.program.launch import Program
from graphdoctor.values.options import AnalyzeOptions, Bounds, RunOptions
from graphdoctor.values.program import ProgramReport
from tests.support.programs import SAMPLES

# A line that is added to each, and what is said of the weights.
CHANGES = {
    "dqn.py": (
        "            old_val, loss = train_step(data)",
        "its 4 weight tensors after 23 steps are bitwise equal",
    ),
    "gpt_training.py": (
        "    loss = train_step(batches)",
        "its 17 weight tensors after 13 steps are bitwise equal",
    ),
    "image_training.py": (
        "        loss = train_step(image, target, device, scaler, model, criterion, optimizer)",
        "with capturable optimizers in both, printed output is identical",
    ),
    "serving.py": ('model = graphdoctor.capture(model, mode="inference")', ""),
    "hf_trainer.py": (
        "    trainer = CapturedTrainer(model=model, args=arguments, train_dataset=Windows())",
        "its 28 weight tensors after 16 steps are bitwise equal",
    ),
}


def patched(file: Path) -> tuple[ProgramReport, Choice, Program]:
    program = Program(str(file))
    options = RunOptions(
        AnalyzeOptions(device="emulated", strategies=("modules",)), Bounds(steps=3, ends=True)
    )
    with contextlib.redirect_stdout(io.StringIO()):
        report, _ = diagnose_program(program, options, lambda doing: None)
    return *with_patch(report, str(file.parent)), program


def tried_in(file: Path, made: tuple[ProgramReport, Choice, Program]) -> ProgramReport:
    report, choice, program = made
    task = Task(program, str(file.parent), "emulated", "h100", MOST_STEPS)
    return tried(report, choice, task, time_limit_s=120.0, progress=lambda doing: None)


@pytest.mark.parametrize("name", CHANGES)
def test_the_diff_of_a_program_applies_and_keeps_its_results(name: str, tmp_path: Path) -> None:
    if name == "hf_trainer.py":
        pytest.importorskip("accelerate", reason="Trainer needs accelerate, which is not installed")
    file = tmp_path / name
    text = (SAMPLES / name).read_text()
    file.write_text(text.replace("layers=2", "layers=1"))  # a second block runs the same code again
    report = tried_in(file, patched(file))
    assert report.patch is not None and report.patch.status == "same results", report.patch
    line, weights = CHANGES[name]
    assert f"+{line}\n" in report.patch.diff and "+import graphdoctor\n" in report.patch.diff
    assert "printed output is identical" in report.patch.tried
    assert weights in report.patch.tried
    assert any("GD117" in step.cured for step in report.steps) == ("train_step(" in line)
    added = [row for row in report.patch.diff.splitlines() if row.startswith("+")]
    assert len(added) <= 40
    (tmp_path / "fix.diff").write_text(report.patch.diff)
    subprocess.run(["git", "apply", "fix.diff"], cwd=tmp_path, check=True)
    assert line in file.read_text().splitlines()


GENERATE = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)
model = LlamaForCausalLM(config).to("cuda").eval()
prompt = torch.randint(0, 64, (1, 4), device="cuda")
tokens = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), do_sample=False, pad_token_id=0,
    eos_token_id=None, max_new_tokens=12,
)
print(tokens.tolist())
"""


def test_generate_gets_a_cache_of_fixed_length(tmp_path: Path) -> None:
    """One that is kept, with a captured forward, before one that each call makes."""
    file = tmp_path / "answer.py"
    file.write_text(GENERATE)
    made = patched(file)
    report = tried_in(file, made)
    assert report.patch is not None and report.patch.status == "same results", report.patch
    assert "8 calls were replayed" in report.patch.tried
    changed = [row for row in report.patch.diff.splitlines() if row[0] in "+-"][2:]
    assert changed[-3:] == [
        "+model.get_compiled_call = lambda config, decode=graphdoctor.capture(model.forward): decode",
        "-    eos_token_id=None, max_new_tokens=12,",
        "+    eos_token_id=None, max_new_tokens=12,"
        " past_key_values=static_cache(model, prompt.shape[0], prompt.shape[1] + 12),",
    ]
    _, plainer = made[1].proposals[0]
    text = changed_sources(plainer.changes)[str(file)][1]
    assert 'eos_token_id=None, max_new_tokens=12, cache_implementation="static",' in text


ONE_WAITS = """\
import torch
import graphdoctor

@graphdoctor.capture
def doubles(x):
    return x * 2

@graphdoctor.capture
def waits(x):
    return x * x.sum().item()

@graphdoctor.capture
def rare(x):
    return x + 1

@graphdoctor.capture
def differs(x, number):
    return x + number

held = type("Held", (), {})()

@graphdoctor.capture
def follows(x):
    return x + len(held.name)

@graphdoctor.capture
def outlasts(x):
    return x + len(held.name)

for number in range(12):
    x = torch.ones(3, device="cuda")
    with torch.no_grad():
        doubles(x), waits(x), differs(x, number)
        held.name = f"{number}"
        follows(x)
        held.name = f"{number > 10}"
        outlasts(x)
        if number < 2:
            rare(x)
"""


def test_a_captured_function_that_mostly_runs_eagerly_is_named(tmp_path: Path) -> None:
    """One that was called too rarely to be captured is none."""
    (tmp_path / "waits.py").write_text(ONE_WAITS)
    task = Task(Program(str(tmp_path / "waits.py")), str(tmp_path), "emulated", "h100", MOST_STEPS)
    with reruns(60.0) as run:
        made = run(task)
    assert made.failure == "" and made.replays > 0
    assert {*made.mostly_eager} == {"waits", "differs", "follows"}
    follows = made.mostly_eager["follows"]
    assert 0 < follows.replayed < follows.eager and "held.name changed from" in follows.reason
    assert made.mostly_eager["differs"].reason == "each of its 12 calls had another signature."
    assert made.mostly_eager["waits"].reason.startswith("GD101 host-read (waits.py:10)")


ROUNDS_BY_ITS_RATE = """\
import torch
import graphdoctor

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

CAPTURED
def train_step(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

for _ in range(9):
    train_step(torch.randn(8, 64, device="cuda"))
"""


def test_a_control_steps_as_a_captured_step_does_from_its_first_call_on(tmp_path: Path) -> None:
    """Its first calls are eager, and a rate in a tensor rounds otherwise."""
    (tmp_path / "train.py").write_text(ROUNDS_BY_ITS_RATE.replace("CAPTURED", ""))
    program, folder = Program(str(tmp_path / "train.py")), str(tmp_path)
    control = Task(program, folder, "emulated", "h100", MOST_STEPS, optimizers="captured")
    captured = ROUNDS_BY_ITS_RATE.replace("CAPTURED", "@graphdoctor.capture")
    changed = replace(control, sources={program.name: captured}, optimizers="as they are")
    with reruns(60.0) as run:
        one, other = run(control), run(changed)
    assert other.replays == 6 and one.weights and other.weights
    assert all(map(torch.equal, one.weights, other.weights))


def test_lines_before_the_first_step_are_counted(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "weight = torch.ones(2, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "print('data')\nprint('model')\n"
        "for step in range(3):\n"
        "    weight.square().sum().backward()\n"
        "    optimizer.step()\n"
        "    print(step)\n"
    )
    with reruns(60.0) as run:
        found = run(Task(Program(str(program)), str(tmp_path), "emulated", "h100", 10))
    assert (found.steps, found.lines_before) == (3, 2)


def test_an_error_is_told_by_the_line_that_names_it(tmp_path: Path) -> None:
    """Torch lists below it what a function takes."""
    (tmp_path / "fails.py").write_text(
        "import torch\ntorch.linspace(0, 1, 3, device=torch.ones(1))\n"
    )
    task = Task(Program(str(tmp_path / "fails.py")), str(tmp_path), "emulated", "h100", MOST_STEPS)
    with reruns(60.0) as run:
        assert run(task).failure.startswith("TypeError: linspace() received an invalid combination")


def test_an_error_of_a_changed_program_has_the_lines_of_its_files_that_led_to_it(
    tmp_path: Path,
) -> None:
    """As where a program differentiates what a captured step returns."""
    name = str(tmp_path / "fails.py")
    Path(name).write_text("")
    text = """\
import torch
def slope(y, x):
    return torch.autograd.grad(y, x)
x = torch.ones(1)
slope(x, x)
"""
    task = Task(Program(name), str(tmp_path), "emulated", "h100", MOST_STEPS, sources={name: text})
    with reruns(60.0) as run:
        failure = run(task).failure
    assert failure.endswith("does not have a grad_fn (fails.py:3, called at fails.py:5)")


ACCUMULATES = """\
import graphdoctor
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)


CAPTURED
def train_step(x, is_update):
    model(x).square().mean().backward()
    if is_update:
        optimizer.step()
        optimizer.zero_grad()


for i in range(24):
    train_step(torch.randn(8, 4, device="cuda"), (i + 1) % 2 == 0)
"""


def test_replays_are_counted_as_steps_only_with_the_flag_that_makes_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCUMULATES.replace("CAPTURED", ""))
    program, folder = Program(str(tmp_path / "train.py")), str(tmp_path)
    control = Task(program, folder, "emulated", "h100", MOST_STEPS, optimizers="captured")
    captured = ACCUMULATES.replace("CAPTURED", "@graphdoctor.capture")
    changed = replace(control, sources={program.name: captured}, optimizers="as they are")
    with reruns(60.0) as run:
        one, other = run(control), run(changed)
    assert other.replays > 12 and one.steps == other.steps == 12
    assert one.weights and other.weights
    assert all(map(torch.equal, one.weights, other.weights))


UNSEEDED = """\
import numpy as np

print(np.random.default_rng().random(), np.random.RandomState().rand())
"""


def test_generators_that_the_program_does_not_seed_draw_the_same_in_each_run(
    tmp_path: Path,
) -> None:
    """Gymnasium makes one for each environment."""
    (tmp_path / "act.py").write_text(UNSEEDED)
    task = Task(Program(str(tmp_path / "act.py")), str(tmp_path), "emulated", "h100", MOST_STEPS)
    with reruns(60.0) as run:
        one, other = run(task), run(task)
    assert one.printed == other.printed != ""


TWO_BACKWARDS = """\
import torch

x = torch.ones(3, device="cuda", requires_grad=True)
weight = torch.ones(3, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
for _ in range(4):
    loss = (x * weight).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()
print(x.grad.tolist())
"""


def test_a_nudge_stops_no_backward_pass_that_the_program_can_run(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWO_BACKWARDS)
    program = Program(str(tmp_path / "twice.py"))
    task = Task(program, str(tmp_path), "emulated", "h100", MOST_STEPS, optimizers="nudged")
    with reruns(60.0) as run:
        nudged = run(task)
    assert (nudged.failure, nudged.steps, nudged.printed[:1]) == ("", 4, "[")


# The loop remembers its model under a name that nothing but an argument binds, and prints what a graph changes.
REFUSED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

    def forward(self, x):
        return self.layer(x)

model = Net().cuda()
with torch.no_grad():
    for i in range(12):
        out = model(torch.full((2, 8), float(i), device="cuda"))
        print("answer", round(out.sum().item(), 4), hasattr(model, "fallbacks"))
"""


LAYER_BY_LAYER = """\
import torch
import graphdoctor


class Layer(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 8, device="cuda")
        self.optimizer = torch.optim.SGD(self.parameters(), 0.1)


@graphdoctor.capture
def train_step(layer, x):
    layer.optimizer.zero_grad()
    loss = layer(x).square().mean()
    loss.backward()
    layer.optimizer.step()
    return loss


x = torch.randn(4, 8, device="cuda")
for layer in [Layer(), Layer()]:
    for _ in range(40):
        loss = train_step(layer, x)
    print(loss.item())
"""


def test_steps_of_one_function_count_for_the_optimizer_that_takes_them(tmp_path: Path) -> None:
    """The forward-forward example: the run was stopped at 50 steps, 10 of which were the second layer's."""
    (tmp_path / "layers.py").write_text(LAYER_BY_LAYER)
    task = Task(Program(str(tmp_path / "layers.py")), str(tmp_path), "emulated", "h100", MOST_STEPS)
    with reruns(60.0) as run:
        ended = run(task)
    assert (ended.failure, ended.steps, ended.was_stopped) == ("", 40, False)
    assert ended.replays > 60 and len(ended.printed.splitlines()) == 2


def test_a_change_that_shows_in_what_is_printed_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(REFUSED)
    report = tried_in(file, patched(file))
    assert report.patch is not None
    assert (report.patch.status, report.patch.diff) == ("left out", "")
    assert "True` instead of `" in report.patch.tried
    (step,) = report.steps
    assert step.change == "" and "True` instead of `" in step.no_change
    assert step.report is not None and step.report.recommendation is not None
    assert "run --diff" not in step.report.recommendation.sentence


FOLLOWED = """\
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda")
target = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    x = torch.randn(3, 4).to("cuda")
    with torch.no_grad():
        wanted = target(x).tanh()
    loss = (model(x) - wanted + 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for param, target_param in zip(model.parameters(), target.parameters()):
        target_param.data.copy_(0.1 * param.data + (1 - 0.1) * target_param.data)
    print(f"{loss.item():.9f}")
"""


def test_a_target_network_in_one_call_is_compared_with_the_program_that_calls_it(
    tmp_path: Path,
) -> None:
    """Averages round otherwise, so that capturable optimizers alone make no equal results."""
    file = tmp_path / "followed.py"
    file.write_text(FOLLOWED)
    report = tried_in(file, patched(file))
    assert report.patch is not None and report.patch.status == "same results", report.patch
    assert "+    torch._foreach_lerp_(" in report.patch.diff
    begun = (
        "with capturable optimizers and averages in one call in both, printed output is identical"
    )
    assert (
        begun in report.patch.tried
        and "weight tensors after 16 steps are bitwise equal" in report.patch.tried
    )


@pytest.mark.gpu
def test_late_steps_are_timed_without_what_the_first_ones_cost(tmp_path: Path) -> None:
    file = tmp_path / "slow_start.py"
    file.write_text(
        """\
import time

import torch

weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(200):
    weight.sum().backward()
    optimizer.step()
    time.sleep(0.01 if 20 < step < 60 else 0)
""",
        encoding="utf-8",
    )
    with reruns(120.0) as run:
        made = run(Task(Program(str(file)), str(tmp_path), "cuda", "h100", 160))
    assert made.step_us is not None and made.late_step_us is not None
    assert made.steps == 160
    assert made.late_step_us < made.step_us - 1_000
