"""What the watched program does -> which steps are seen, on which lines, and what is not claimed of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.values.program import ON_CPU, LineOnGpu
from tests.support.programs import NEVER, Ran, run

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def ran(tmp_path: Path, body: str, **how: object) -> Ran:
    file = tmp_path / "program.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEAD + body)
    return run(file, **how)  # type: ignore[arg-type]


def only(seen: Ran) -> tuple[str, str, str, tuple[str, ...]]:
    (step,) = seen.summary
    name, mode, verdict, rules = step
    return name, mode, verdict, tuple(rule for rule in rules if rule not in ("GD301", "GD302"))


def test_a_rate_that_the_loop_sets_between_the_steps_is_frozen_in_a_graph(tmp_path: Path) -> None:
    body = """\
for i in range(10):
    for group in opt.param_groups:
        group["lr"] = 0.1 / (i + 1)
    x = torch.randn(2, 4, device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
"""
    name, mode, _, rules = only(ran(tmp_path, body))
    assert (name, mode, rules) == ("program.py:10-13", "training", ("GD204",))


def test_a_number_that_the_step_itself_counts_goes_on_and_its_branch_is_found(
    tmp_path: Path,
) -> None:
    body = """\
class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.net = 0, model
    def forward(self, x):
        self.calls += 1
        return self.net(x) * 2 if self.calls > 500 else self.net(x)
warm = Warm()
x = torch.randn(2, 4, device="cuda")
with torch.no_grad():
    for i in range(9):
        warm(x)
"""
    _, _, verdict, rules = only(ran(tmp_path, body))
    assert (verdict, rules) == ("unsafe", ("GD217",))


def test_a_number_that_the_program_puts_back_before_each_step_is_put_back_for_the_recorded_ones(
    tmp_path: Path,
) -> None:
    """As sharpness-aware training does: batch norm's momentum is 0 in the second pass only."""
    body = """\
model.scale = 1.0
for i in range(10):
    model.scale = 1.0
    x = torch.randn(2, 4, device="cuda")
    (model(x) * model.scale).square().mean().backward()
    model.scale = 0.5
    (model(x) * model.scale).square().mean().backward()
    opt.step()
    opt.zero_grad()
"""
    name, mode, _, rules = only(ran(tmp_path, body))
    assert (name, mode, rules) == ("program.py:10-14", "training", ())


def test_weights_that_the_program_freezes_before_each_step_are_frozen_for_the_recorded_ones(
    tmp_path: Path,
) -> None:
    """As Lightning's `toggle_optimizer()` does for a GAN's generator, in front of its step."""
    body = """\
other = nn.Linear(4, 4).cuda()
second = torch.optim.SGD(other.parameters(), lr=0.1)
for i in range(10):
    other.requires_grad_(False)
    x = torch.randn(2, 4, device="cuda")
    other(model(x)).square().mean().backward()
    opt.step()
    opt.zero_grad()
    other.requires_grad_(True)
    second.zero_grad()
    other(model(x).detach()).mean().backward()
    second.step()
"""
    name, mode, verdict, rules = only(ran(tmp_path, body))
    assert (name, mode, verdict, rules) == ("program.py:11-17", "training", "safe", ())


def test_a_tensor_that_the_program_replaces_between_the_steps_is_a_finding(
    tmp_path: Path,
) -> None:
    body = """\
model.scale = torch.ones(4, device="cuda")
model.register_forward_hook(lambda module, args, out: out * module.scale)
with torch.no_grad():
    for i in range(10):
        model.scale = torch.rand(4, device="cuda")
        model(torch.randn(2, 4, device="cuda"))
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None and step.report.verdict == "unsafe"
    messages = [one.message for one in step.report.findings if one.rule == "GD205"]
    assert any("model.scale" in message for message in messages)


def test_where_the_host_waits_between_the_steps_is_told_apart_from_the_step(tmp_path: Path) -> None:
    body = """\
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if loss.item() > 100 or i < 0:
        break
    torch.cuda.synchronize()
    last = loss.detach().cpu()
    del loss
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None and step.report.verdict == "safe"
    seen = {(w.location.line, w.operation, w.count) for w in step.between if w.location}
    assert seen == {
        (12, "reads a value of the device", 1.0),
        (14, "torch.cuda.synchronize()", 1.0),
        (15, "copies to the host", 1.0),
    }


def test_a_wait_behind_the_optimizer_and_within_the_step_is_said_once_as_its_finding(
    tmp_path: Path,
) -> None:
    body = """\
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    last = loss.item()
    opt.zero_grad()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert (step.location.line, step.last_line, step.between) == (8, 12, ())
    assert step.report is not None and "GD101" in {one.rule for one in step.report.findings}


def test_transforms_that_are_modules_belong_to_the_loading_of_a_batch(tmp_path: Path) -> None:
    body = """\
class Doubled(nn.Module):
    def forward(self, x): return 2 * x
class Data(torch.utils.data.Dataset):
    transform = Doubled()
    def __len__(self): return 20
    def __getitem__(self, i): return self.transform(torch.ones(4))
for x in torch.utils.data.DataLoader(Data(), batch_size=2):
    loss = model(x.cuda()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert (step.name, step.begun) == ("program.py:13-16", 10)


@pytest.mark.parametrize(
    ("samples", "how", "sizes"),
    [(23, "", "3 of 4"), (23, ", drop_last=True", ""), (24, "", ""), (3, "", "")],
    ids=["a short last batch", "which is dropped", "no short one", "only one batch"],
)
def test_a_shorter_last_batch_is_named(samples: int, how: str, sizes: str, tmp_path: Path) -> None:
    body = f"""\
for x in torch.utils.data.DataLoader(torch.ones({samples}, 4), batch_size=4{how}):
    loss = model(x.cuda()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
"""
    notes = [one for one in ran(tmp_path, body).report.notes if "drop_last=True" in one]
    assert len(notes) == bool(sizes) and all(f"has {sizes} samples" in one for one in notes)


def test_what_the_loop_still_holds_of_the_step_before_is_named_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    body = """\
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    out = {"y": model(x)}
    loss = out["y"].square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None
    (found,) = (one for one in step.report.findings if one.rule == "GD117")
    assert found.location is not None and found.location.line == 11
    assert (
        "`out` (program.py:8) and `loss` (program.py:9) still reference an AccumulateGrad node"
        in found.message
    )
    assert found.fix == "Add `out = loss = None` before line 8."
    cured = body.replace("    out = {", "    out = loss = None\n    out = {")
    assert only(ran(tmp_path / "cured", cured))[2:] == ("safe", ())
    (edit,) = found.edits
    assert (edit.start_line, edit.start_column, edit.new_text) == (8, 5, "out = loss = None\n    ")


def test_what_the_model_holds_of_the_step_before_is_named_with_the_variables(
    tmp_path: Path,
) -> None:
    body = """\
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.gate, self.penalty = model, None, None
    def forward(self, x):
        self.gate = self.net(x).sigmoid()
        self.penalty = self.gate.square().mean()
        return x * self.gate
gated = Gated()
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    loss = gated(x).square().mean() + gated.penalty
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None
    (found,) = (one for one in step.report.findings if one.rule == "GD117")
    assert "`loss` (program.py:17), `gated.gate` and 1 more still reference" in found.message
    assert found.fix == (
        "Add `loss = None` before line 17. After line 20, replace `gated.gate` and `gated.penalty` with their"
        " detach()."
    )
    assert found.edits == ()
    cured = body.replace("    loss = g", "    loss = None\n    loss = g") + (
        "    gated.gate, gated.penalty = gated.gate.detach(), gated.penalty.detach()\n"
    )
    assert "GD117" not in only(ran(tmp_path / "cured", cured))[3]


def test_what_a_step_reads_of_the_step_before_is_detached_where_it_is_complete(
    tmp_path: Path,
) -> None:
    body = """\
total = torch.zeros((), device="cuda")
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    loss = model(x).square().mean()
    total = total + loss
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None
    (found,) = (one for one in step.report.findings if one.rule == "GD117")
    assert found.fix == (
        "Add `loss = None` before line 9. Add `total = total.detach()` after line 13; "
        "detach each tensor if `total` holds several."
    )
    assert found.edits == ()
    cured = body.replace("    loss = m", "    loss = None\n    loss = m")
    cured = f"{cured}    total = total.detach()\n"
    assert "GD117" not in only(ran(tmp_path / "cured", cured))[3]


@pytest.mark.parametrize(
    ("forward_and_backward", "last_line"),
    [
        ("loss = model(x).square().mean() / 2\n    loss.backward()", 12),
        ("(model(x).square().mean() / 2).backward()", 11),
        ("with torch.enable_grad():\n        model(x).mean().backward()\n        model(2 * x).mean().backward()", 13),
    ],
    ids=["two lines", "one line", "one statement"],
)  # fmt: skip
def test_accumulated_gradients_are_one_step_of_several_passes(
    forward_and_backward: str, last_line: int, tmp_path: Path
) -> None:
    body = f"""\
for i in range(24):
    x = torch.randn(2, 4, device="cuda")
    {forward_and_backward}
    if i % 2 == 1:
        opt.step()
        opt.zero_grad()
    print(f"{{model.weight.sum().item():.6f}}")
    loss = None
"""
    seen = ran(tmp_path, body)
    (step,) = seen.report.steps
    assert (step.passes, step.location.line, step.last_line) == (2, 8, last_line)
    assert step.report is not None and step.report.verdict == "safe"
    assert seen.printed == ran(tmp_path, body, after=NEVER).printed


def test_a_loss_without_a_module_belongs_to_the_step(tmp_path: Path) -> None:
    body = """\
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    loss = (x @ model.weight).square().mean()
    loss.backward()
    opt.step(); opt.zero_grad()
    del loss
"""
    name, _, verdict, rules = only(ran(tmp_path, body))
    assert (name, verdict, rules) == ("program.py:8-10", "safe", ())


def test_two_optimizers_of_one_loop_are_one_step(tmp_path: Path) -> None:
    body = """\
other = nn.Linear(4, 4).cuda()
second = torch.optim.SGD(other.parameters(), lr=0.1)
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    fake = model(x)
    second.zero_grad()
    other(fake.detach()).mean().backward()
    second.step()
    opt.zero_grad()
    other(fake).square().mean().backward()
    opt.step()
    del fake
"""
    name, _, verdict, _ = only(ran(tmp_path, body))
    assert (name, verdict) == ("program.py:10-16", "safe")


def test_two_models_called_on_one_line_after_an_optimizer_has_stepped_begin_no_step(
    tmp_path: Path,
) -> None:
    """As TD3 does: the critic steps each time, the actor every second time, on the same batch."""
    body = """\
actor = nn.Linear(4, 4).cuda()
second = torch.optim.SGD(actor.parameters(), lr=0.1)
for i in range(24):
    x = torch.randn(2, 4, device="cuda")
    opt.zero_grad()
    model(x).square().mean().backward()
    opt.step()
    if i % 2 == 1:
        second.zero_grad()
        model(actor(x)).mean().backward()
        second.step()
"""
    assert only(ran(tmp_path, body))[3] == ("GD201",)


def test_lines_that_do_something_else_when_they_run_by_themselves_are_not_judged(
    tmp_path: Path,
) -> None:
    body = """\
import os
for i in range(12):
    os.environ["GO"] = "1"
    loss = model(torch.randn(2, 4, device="cuda")).mean()
    loss.backward()
    if os.environ.pop("GO", None):
        opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is None and "did not step the optimizer" in step.reason


def test_a_step_that_writes_a_file_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "written"
    body = f"""\
for i in range(10):
    loss = model(torch.randn(2, 4, device="cuda")).mean()
    loss.backward()
    open({str(file)!r}, "a").write("once")
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is None and f"writes {file}" in step.reason
    assert file.read_text() == "once" * 10


def test_steps_that_the_program_marks_are_those(tmp_path: Path) -> None:
    body = """\
import graphdoctor
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    with graphdoctor.step():
        loss = model(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total = loss.item()
    del loss
"""
    name, mode, _, rules = only(ran(tmp_path, body))
    assert (name, mode, rules) == ("program.py:10-14", "training", ("GD101",))


def test_a_step_that_ran_too_few_times_to_be_diagnosed_meanwhile_is_diagnosed_at_the_end(
    tmp_path: Path,
) -> None:
    body = """\
for i in range(6):
    x = torch.randn(2, 4, device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.begun == 6  # three show which lines they are, one how many passes, two are compared
    assert step.report is not None and step.report.verdict == "safe", step.reason
    (rare,) = ran(tmp_path, body.replace("range(6)", "range(5)")).report.steps
    assert rare.report is None and "ran 5 times, and a diagnosis needs 6 runs" in rare.reason


def test_a_program_on_the_cpu_is_said_to_be_there_and_can_be_placed(tmp_path: Path) -> None:
    body = """\
model, x = model.cpu(), torch.ones(2, 4)
with torch.no_grad():
    for i in range(9):
        model(x + i)
"""
    report = ran(tmp_path, body).report
    (step,) = report.steps
    assert step.report is None and step.reason == ON_CPU
    model = LineOnGpu(step.location.file, 6, 'model.to("cuda")', is_added=True)
    assert model in report.on_gpu
    moved = body.replace("\nwith", '\nmodel.to("cuda")\nx = x.cuda()\nwith', 1)
    (told,) = ran(tmp_path, moved).report.steps
    assert told.report is not None and told.report.verdict == "safe"
    (placed,) = ran(tmp_path, body.replace("cpu()", "to('cpu')"), on_cpu=False).report.steps
    assert placed.report is None


def test_left_on_the_cpu_the_steps_are_diagnosed_as_if_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import torch\nassert not torch.cuda.is_available()\nmodel = torch.nn.Linear(4, 4)\n"
        "with torch.no_grad():\n    for i in range(9):\n        model(torch.ones(2, 4))\n"
    )
    report = run(file, on_cpu=True).report
    (step,) = report.steps
    assert step.report is not None and step.report.verdict == "safe"
    assert report.is_on_cpu and not run(file).report.is_on_cpu


def test_a_step_on_the_cpu_that_no_gpu_runs_names_the_line_to_change(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("""\
import torch

class Halved(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).numpy() / 2

model = Halved(4, 4)
with torch.no_grad():
    for i in range(9):
        model(torch.ones(2, 4))
""")
    (step,) = run(file, on_cpu=True).report.steps
    assert step.report is None and step.reason.startswith("With its model and inputs on a GPU, ")
    assert " (program.py:5). Change this line to run the step on a GPU" in step.reason


@pytest.mark.parametrize(
    "body", ["print('no model')\n", "model(torch.ones(1, 4, device='cuda'))\n"]
)
def test_a_program_without_steps_is_said_to_have_none(tmp_path: Path, body: str) -> None:
    report = ran(tmp_path, body).report
    assert report.steps == () and report.notes[0].startswith("No step was seen that repeats")


def test_training_without_an_optimizer_is_named_by_its_line(tmp_path: Path) -> None:
    body = """\
for i in range(5):
    model.zero_grad()
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    with torch.no_grad():
        for each in model.parameters():
            each -= 0.1 * each.grad
"""
    ran_once = ran(tmp_path, body)
    (note,) = [note for note in ran_once.report.notes if "by hand" in note]
    assert " ran 5 times, and no optimizer stepped after it" in note
    closure = """\
opt = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    opt.zero_grad()
    loss = model(torch.ones(1, 4, device="cuda")).square().sum()
    loss.backward()
    return loss
opt.step(closure)
"""
    (note,) = ran(tmp_path, closure).report.notes
    assert note.startswith("One call of `LBFGS.step()` ran the backward pass of ")
    with_optimizer = "opt = torch.optim.SGD(model.parameters(), 0.1)\n" + body + "    opt.step()\n"
    assert not any("by hand" in note for note in ran(tmp_path, with_optimizer).report.notes)


def test_a_program_is_ended_once_its_steps_are_diagnosed(tmp_path: Path) -> None:
    body = """\
import torch
model = torch.nn.Linear(4, 4).cuda()
with torch.no_grad():
    for i in range(1000):
        try:
            model(torch.ones(2, 4, device="cuda"))
        except Exception:
            pass
"""
    file = tmp_path / "program.py"
    file.write_text(body)
    report = run(file, ends=True).report
    assert (report.ending, report.exit_code) == ("ended by graphdoctor", 0)
    assert report.steps[0].begun < 10 and report.steps[0].report is not None


def test_a_program_whose_step_is_in_a_thread_is_ended_although_it_waits_for_answers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """\
import queue, threading, torch
model = torch.nn.Linear(4, 4).cuda()
asked, answered = queue.Queue(), queue.Queue()
def serve():
    with torch.no_grad():
        while True:
            answered.put(model(asked.get()))
threading.Thread(target=serve).start()
for i in range(1000):
    asked.put(torch.ones(2, 4, device="cuda"))
    answered.get()
"""
    file = tmp_path / "program.py"
    file.write_text(body)
    report = run(file, ends=True).report
    assert (report.ending, report.exit_code) == ("ended by graphdoctor", 0)
    assert report.steps[0].report is not None
    assert "Exception in thread" not in capfd.readouterr().err


def test_a_program_with_an_optimizer_is_not_ended_before_it_trains(tmp_path: Path) -> None:
    body = """\
with torch.no_grad():
    for i in range(12):
        model(torch.ones(2, 4, device="cuda"))
for i in range(1000):
    loss = model(torch.ones(2, 4, device="cuda")).mean()
    loss.backward()
    opt.step()
"""
    report = ran(tmp_path, body, ends=True).report
    assert report.ending == "ended by graphdoctor"
    assert {step.mode for step in report.steps if step.report} == {"inference", "training"}


@pytest.mark.parametrize("again", [True, False])
def test_a_program_that_acts_with_gradients_is_not_ended_before_it_acts_again(
    again: bool, tmp_path: Path
) -> None:
    """As a DQN agent, which acts for an episode and then trains for ten steps."""
    body = f"""\
def act():
    return model(torch.ones(1, 4, device="cuda")).argmax()
for i in range(12):
    act()
for i in range(100):
    for j in range(20):
        loss = model(torch.ones(2, 4, device="cuda")).mean()
        loss.backward()
        opt.step()
    for j in range(20):
        {again} and act()
"""
    report = ran(tmp_path, body, ends=True).report
    assert report.ending == "ended by graphdoctor"
    modes = ["inference", "training"] if again else ["training"]
    assert sorted(step.mode for step in report.steps if step.report) == modes
    assert max(step.begun for step in report.steps) < 100


def test_passes_of_an_agent_before_it_trains_count_as_its_acting(tmp_path: Path) -> None:
    """As a DQN agent, which fills its memory first: nothing shows yet that these passes train nothing."""
    body = """\
import time
class Agent(nn.Linear):
    def forward(self, x):
        time.sleep(0.002 * (len(x) == 1))
        return super().forward(x)
agent = Agent(4, 4).cuda()
opt = torch.optim.SGD(agent.parameters(), lr=0.1)
def act():
    return agent(torch.ones(1, 4, device="cuda")).argmax()
for i in range(100):
    act()
for i in range(10):
    act()
    loss = agent(torch.ones(2, 4, device="cuda")).mean()
    loss.backward()
    opt.step()
"""
    report = ran(tmp_path, body).report
    (acting,) = (step for step in report.steps if step.mode == "inference")
    assert acting.begun == 110 and acting.wall_s > 0.2


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_call_is_diagnosed_with_gradients_off_as_the_program_makes_it(
    mode: str, tmp_path: Path
) -> None:
    body = f"""\
class Net(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if not torch.is_grad_enabled() else y * y.sum().item()

net = Net(4, 4).cuda()
with torch.{mode}():
    for i in range(9):
        net(torch.ones(2, 4, device="cuda"))
"""
    name, mode_of_step, verdict, rules = only(ran(tmp_path, body))
    assert (name, mode_of_step, verdict, rules) == (
        "Net at program.py:14", "inference", "safe", ()
    )  # fmt: skip


def test_a_program_that_fails_keeps_its_code_and_what_was_seen(tmp_path: Path) -> None:
    body = """\
for i in range(20):
    loss = model(torch.ones(2, 4, device="cuda")).mean()
    loss.backward()
    opt.step()
    if i == 12:
        raise ValueError("no more data")
"""
    seen = ran(tmp_path, body)
    assert (seen.report.ending, seen.report.exit_code) == ("raised", 1)
    assert seen.said.endswith("ValueError: no more data") and "graphdoctor" not in seen.said
    assert seen.report.steps[0].report is not None


def test_gradients_that_no_backward_pass_made_are_said_to_need_a_mark(tmp_path: Path) -> None:
    """As those of torch.func.grad for each sample."""
    body = """\
for i in range(10):
    loss = model(torch.randn(2, 4, device="cuda")).square().mean()
    for weight, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
        weight.grad = gradient / 2
    opt.step()
"""
    seen = ran(tmp_path, body)
    assert not seen.summary
    assert any("no backward() made" in note for note in seen.report.notes), seen.report.notes


def test_a_marked_step_may_make_its_gradients_as_it_likes(tmp_path: Path) -> None:
    body = """\
import graphdoctor
for weight in model.parameters():
    weight.register_hook(lambda gradient, name=str(weight.shape): None)
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    with graphdoctor.step():
        loss = model(x).square().mean()
        for weight, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
            weight.grad = gradient / 2
        opt.step()
        del loss
"""
    assert only(ran(tmp_path, body))[2] == "safe"


LIBRARY = """\
import torch

def where(mask, x, number):
    made = {"torch": torch}
    exec("def op(mask, x, y): return torch.where(mask, x, torch.asarray(y, device=x.device))", made)
    return made["op"](mask, x, number)
"""


def test_generated_code_of_a_library_is_placed_at_the_line_that_calls_it(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "selecting.py").write_text(LIBRARY)
    body = f"""\
import sys; sys.path.insert(0, {str(packages)!r})
import selecting
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    selecting.where(x > 0, model(x), 0.5).square().mean().backward()
    opt.step()
    opt.zero_grad()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None
    (found,) = (one for one in step.report.findings if one.rule == "GD105")
    assert found.location is not None and found.location.file.endswith("selecting.py")
    assert found.location.line == 6
    assert found.fix.startswith(
        "`selecting.where()` copies the number `0.5` of line 10 of program.py to the GPU."
    )
    cured = body.replace("selecting.where", "torch.where")
    assert only(ran(tmp_path / "cured", cured))[2:] == ("safe", ())


def test_a_number_that_a_line_of_the_program_passes_to_its_own_package_is_named_with_that_line(
    tmp_path: Path,
) -> None:
    package = tmp_path / "own_layers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    floor = "import torch\ndef floored(x, low, scale=1.0):\n    return torch.maximum(x * scale, BOUND)\n"
    bound = "torch.as_tensor(low, device=x.device)"  # torch.tensor() warns of a tensor
    body = """\
from own_layers.floor import floored
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    floored(model(x), -0.5, scale=2.0).square().mean().backward()
    opt.step()
    opt.zero_grad()
"""
    file = package / "floor.py"
    file.write_text(floor.replace("BOUND", bound))
    (package / "ceiling.py").write_text(floor.replace("maximum", "clamp").replace("BOUND", "low"))
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None
    (found,) = (one for one in step.report.findings if one.rule == "GD105")
    assert found.location is not None and found.location.file == str(file)
    assert found.fix == (
        "`floored()` copies the number `-0.5` of line 9 of program.py to the GPU. Let `floored()` compute with the"
        " number, or pass a GPU tensor that exists before the step."
    )
    given = body.replace("-0.5, ", "low, ").replace(
        "for i", 'low = torch.tensor(-0.5, device="cuda")\nfor i'
    )
    assert only(ran(tmp_path / "given", given))[2:] == ("safe", ())
    computed = body.replace("layers.floor", "layers.ceiling")
    assert only(ran(tmp_path / "computed", computed))[2:] == ("safe", ())


def test_a_count_of_steps_below_the_step_is_no_state_of_it(tmp_path: Path) -> None:
    body = """\
iter_num = 0
while iter_num < 12:
    x = torch.randn(2, 4, device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
    if iter_num % 4 == 0:
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
    iter_num += 1
"""
    training = next(step for step in ran(tmp_path, body).report.steps if step.mode == "training")
    assert training.report is not None and training.report.verdict == "safe", training.report
    assert not any("iter_num" in limit for limit in training.report.limits)


def test_a_constant_of_the_cpu_is_found_under_a_default_tensor_type(tmp_path: Path) -> None:
    """NeRF's distance to infinity: torch.Tensor() makes it on the CPU and copies it in each step."""
    body = """\
torch.set_default_tensor_type("torch.cuda.FloatTensor")
for i in range(10):
    x = torch.randn(2, 4)
    loss = torch.cat([model(x), torch.Tensor([1e10]).expand(2, 1)], -1).clamp(max=1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
torch.set_default_tensor_type("torch.FloatTensor")
"""
    (step,) = ran(tmp_path, body, ends=False).report.steps
    assert step.report is not None
    assert {each.rule for each in step.report.findings} >= {"GD105"}
