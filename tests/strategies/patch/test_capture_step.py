"""A training step becomes a function of its batch, and the program computes what it computed before."""

from __future__ import annotations

import ast
import contextlib
import io
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.reporters import program_page
from graphdoctor.reporters.look import Look
from graphdoctor.strategies.patch.edits.capture_step import CaptureStep
from graphdoctor.strategies.patch.edits.cured_in_functions import cured_in_functions
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.edits.unchecked_distributions import TURNED_OFF, unchecked_at
from graphdoctor.strategies.patch.made import with_patch
from graphdoctor.strategies.patch.source import changed_sources, unified
from graphdoctor.values.figures import Range
from graphdoctor.values.finding import Edit, Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.program import CalledModule, Handled, Handling, ProgramStep
from tests.support.reports import (
    COMPARED,
    ESTIMATE,
    HOST_READ,
    PARTLY_SAFE,
    SAFE,
    of_program,
    step_of,
)

# Marked lines are the first and the last of the step; what is printed has to stay.
HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(3, 4), torch.randint(0, 2, (3,))) for _ in range(6)]
"""
PROGRAMS = {
    "a loop that reads its loss in the middle": HEAD
    + """\
total = 0.0
# All batches.
for x, y in data:
    # One step.
    optimizer.zero_grad()  # first
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    total += loss.item()
    if total > 1.0:
        print(total)

    # The update.
    optimizer.step()  # last
print(total, loss.item())
""",
    "a variable that is bound for some models only": HEAD
    + """\
is_recurrent = False


def run_epoch(batches):
    if is_recurrent:
        hidden = torch.zeros(3, 4)
    for x, y in batches:
        optimizer.zero_grad()  # first
        if is_recurrent:
            out, hidden = model(x, hidden)
        else:
            out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()  # last
        print(loss.item())


run_epoch(data)
""",
    "a loss that one of several branches computes": HEAD
    + """\
kind = "entropy"
for x, y in data:
    out = model(x)  # first
    if kind == "square":
        loss = out.pow(2).mean()
    elif kind == "entropy":
        scale = out.std().detach()
        loss = nn.functional.cross_entropy(out / scale, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
print(loss.item())
""",
    "a function whose branch computes the loss": HEAD
    + """\
def run_epoch(model, optimizer, batches, kind):
    for x, y in batches:
        out = model(x)  # first
        if kind == "entropy":
            loss = nn.functional.cross_entropy(out, y)
        elif kind == "square":
            loss = out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # last
    print(loss.item())


run_epoch(model, optimizer, data, "entropy")
""",
    "a function that is called for each epoch": HEAD
    + """\
def run_epoch(model, optimizer, batches, epoch):
    for i, (x, y) in enumerate(batches):
        out = model(x)  # first
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # last
        print(epoch, i, loss.item())


for epoch in range(2):
    run_epoch(model, optimizer, data, epoch)
""",
    "accumulated gradients whose batches are drawn between the passes": HEAD
    + """\
batches_left = iter(data)


def get_batch():
    return next(batches_left)


x, y = get_batch()
for it in range(2):
    # Two passes.
    for micro_step in range(2):  # first
        loss = nn.functional.cross_entropy(model(x), y) / (2 + 0 * micro_step)
        # The next one.
        x, y = get_batch()
        loss.backward()
    optimizer.step()
    print(x.mean().item())
    optimizer.zero_grad()  # last
    print(it, loss.item(), x.sum().item())
""",
    "two optimizers, one of which steps every second time": HEAD
    + """\
actor = nn.Linear(2, 2)
actor_optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
is_tuned = True
alpha = 1.0
for step, (x, y) in enumerate(data):
    with torch.no_grad():
        target = model(x).max(1).values * alpha
    value = model(x).mean(1)  # first
    q_loss = (value - target).pow(2).mean()
    optimizer.zero_grad()
    q_loss.backward()
    optimizer.step()
    if step % 2 == 0:  # the actor
        for _ in range(2):
            actor_loss = actor(model(x).detach()).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            if is_tuned:
                tuned = actor_loss.detach() * 2
                alpha = tuned.exp().item()  # last
    print(step, q_loss.item(), round(float(alpha), 6), actor_loss.item(), tuned.item())
""",
    "networks that follow the trained one": HEAD
    + """\
import copy

target, average, share = copy.deepcopy(model), copy.deepcopy(model), 0.25


def follow(behind, ahead):
    \"\"\"A moving average.\"\"\"
    known = dict(ahead.named_parameters())
    with torch.no_grad():
        for name, ours in behind.named_parameters():
            new = known[name].detach()
            if ours.dtype.is_floating_point:
                ours.lerp_(new, share)


for step, (x, y) in enumerate(data):
    with torch.no_grad():
        wanted = target(x)
    loss = (model(x) - wanted + 1).square().mean()  # first
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    follow(average, model)

    # Every second step.
    if step % 2 == 0:
        for param, target_param in zip(model.parameters(), target.parameters()):
            target_param.data.copy_(share * param.data + (1 - share) * target_param.data)
    for param, slow_param in zip(model.parameters(), average.parameters()):
        slow_param.data.lerp_(param.data, 0.01 * step)
    figures = (loss.item(), target(x).sum().item(), average(x).sum().item())
    print(step, *(f"{each:.5f}" for each in figures))
""",
    "a trainer whose step reads and sets its attributes": HEAD
    + """\
from types import SimpleNamespace


class Trainer:
    def __init__(self, config):
        self.config = config
        self.loss = None
        self.optimizer = optimizer

    def run(self):
        config = self.config
        for x, y in data:
            out = model(x)  # first
            self.loss = nn.functional.cross_entropy(out, y) * config.scale
            self.optimizer.zero_grad()
            self.loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            self.optimizer.step()  # last
            print(self.loss.item())


Trainer(SimpleNamespace(scale=2.0, clip=1.0)).run()
""",
    "a trainer that calls its model and its criterion": HEAD
    + """\
class Trainer:
    def __init__(self):
        self.model, self.criterion, self.optimizer = model, nn.CrossEntropyLoss(), optimizer
        self.seen = 0

    def step(self, x, y):
        loss = self.criterion(self.model(x), y)  # first
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # last
        self.seen += len(x)
        return loss.item()


trainer = Trainer()
for x, y in data:
    print(trainer.step(x, y))
""",
    "noise that NumPy draws in the middle": HEAD
    + """\
import numpy as np
from torch.autograd import Variable

np.random.seed(0)
for x, y in data:
    optimizer.zero_grad()  # first
    z = Variable(torch.FloatTensor(np.random.normal(0, 1, (x.shape[0], 4))))
    real = Variable(torch.FloatTensor(x.shape[0], 2).fill_(1.0), requires_grad=False)
    loss = (nn.functional.cross_entropy(model(x + z), y) * real).mean()
    loss.backward()
    optimizer.step()  # last
    print(loss.item())
""",
    "a penalty that draws in a function, and a branch that reports": HEAD
    + """\
import numpy as np

np.random.seed(0)
net = nn.Linear(2, 2)
optimizer_net = torch.optim.SGD(net.parameters(), lr=0.1)


def penalty(model, real):
    # Where between the two.
    share = torch.FloatTensor(np.random.random((real.size(0), 1)))
    return model(share * real).norm(2, dim=1).mean()


done = 0
for i, (x, y) in enumerate(data):
    optimizer.zero_grad()  # first
    out = model(x)
    loss = nn.functional.cross_entropy(out, y) + penalty(model, x.data)
    right = np.argmax(out.data.cpu().tolist(), axis=1)
    share_right = np.mean(np.equal(right, y.tolist()))
    loss.backward()
    optimizer.step()
    if i % 2 == 0:
        net_loss = net(model(x).detach()).square().mean()
        optimizer_net.zero_grad()
        net_loss.backward()
        optimizer_net.step()
        print(i, done, net_loss.item())
        done += 2  # last
    print(loss.item(), share_right)
""",
    "a batch that is changed under a condition, and a loss that each way binds": HEAD
    + """\
def train(y_weight):
    for i, (x, y) in enumerate(data):
        if i % 2:
            x, y = x * 2, y.clone()
            y_weight = y_weight / 2
        out = model(x) * y_weight  # first
        if kind == "sum":
            loss = nn.functional.cross_entropy(out, y)
        else:
            raise ValueError(kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # last
        print(i, loss.item())

kind = "sum"
train(1.0)
""",
    "a running mean of the loss, shown before the optimizer steps": HEAD
    + """\
class Bar:
    def set_description(self, text):
        print(text)


mean, bar = None, Bar()
for x, y in data:
    optimizer.zero_grad()  # first
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if mean is None:
        mean = loss.item()
    else:
        mean = 0.9 * mean + 0.1 * loss.item()
    bar.set_description(f"loss {mean:.3f}")
    optimizer.step()  # last
""",
    "gradients of several passes, counted by the loop": HEAD
    + """\
def train(passes):
    for i, (x, y) in enumerate(data):
        loss = nn.functional.cross_entropy(model(x), y) / passes  # first
        loss.backward()
        if (i + 1) % passes == 0 or i + 1 == len(data):
            optimizer.step()
            optimizer.zero_grad()  # last
        print(i, loss.item())


train(2)
""",
    "a loss that is doubled in some steps, counted by the loop": HEAD
    + """\
for i, (x, y) in enumerate(data):
    optimizer.zero_grad()  # first
    loss = nn.functional.cross_entropy(model(x), y)
    if i % 3:
        loss = loss * 2
    loss.backward()
    optimizer.step()  # last
    print(i, loss.item())
""",
    "a name that only some steps bind": HEAD
    + """\
best = None
for i, (x, y) in enumerate(data):
    loss = nn.functional.cross_entropy(model(x), y)  # first
    if i % 2:
        best = loss.detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    print(i, best)
""",
    "figures of a block without gradients": HEAD
    + """\
clipped = []
for x, y in data:
    ratio = model(x).softmax(1)  # first
    with torch.no_grad():
        far = (ratio - 0.5).abs()
        clipped += [(far > 0.1).float().mean().item()]
    loss = nn.functional.nll_loss(ratio.log(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
print(clipped, loss.item(), far.sum().item())
""",
    "figures that the host reads in each step": HEAD
    + """\
right, accuracies = 0, []
for i, (x, y) in enumerate(data):
    out = model(x)  # first
    loss = nn.functional.cross_entropy(out, y)
    accuracies.append((out.argmax(1) == y).float().mean().item())
    optimizer.zero_grad()
    loss.backward()
    # All of them.
    right += out.argmax(1).eq(y).sum().item()
    print(round(float(out.detach().abs().max()), 4), (out > i).sum().item(), loss.item())
    if i % 2 == 0:
        print(out.mean().item())
    norm = round(out.norm().item(), 3)
    optimizer.step()  # last
print(accuracies, right, norm)
""",
    "an accuracy below the step": HEAD
    + """\
train_loss, total, correct, accuracies = 0.0, 0, 0, []
for i, (x, y) in enumerate(data):
    out = model(x)  # first
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last

    train_loss += loss.item()
    # Over all classes.
    _, predicted = out.max(1)
    total += y.size(0)
    correct += predicted.eq(y).sum().item()
    top = out.topk(2, 1)[1]
    accuracies.append((top[:, 0] == y).float().mean().item())
    if i % 2 == 0:
        print(train_loss, total, correct)
print(accuracies)
""",
    "an accuracy that a function with a step returns": HEAD
    + """\
accuracies = []


def update(x, y):
    out = model(x)  # first
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    accuracies.append((out.argmax(1) == y).float().mean().item())
    return loss


for x, y in data:
    print(update(x, y).item(), accuracies)
""",
    "a figure below a branch that steps an optimizer": HEAD
    + """\
for i, (x, y) in enumerate(data):
    out = model(x)  # first
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 2 == 0:
        other = model(x).square().mean()
        optimizer.zero_grad()
        other.backward()
        optimizer.step()
    print(out.mean().item(), loss.item())
    print(other.item())  # last
""",
    "a weight that changes and indices of NumPy": HEAD
    + """\
import numpy

for i, (x, y) in enumerate(data):
    weight = 1.0 / (1 + i)
    chosen = numpy.arange(3)[::-1].copy()
    loss = weight * nn.functional.cross_entropy(model(x[chosen]), y[chosen])  # first
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    print(i, round(loss.item(), 5))
""",
    "statements behind semicolons": HEAD
    + """\
for x, y in data:
    label = "ä"; optimizer.zero_grad(); loss = nn.functional.cross_entropy(model(x), y)  # first
    loss.backward(); optimizer.step(); print(label, loss.item())  # last
""",
    "a method": HEAD
    + """\
class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.loss = model, optimizer, None

    def run(self):
        for batch in data:
            x, y = [each.to("cpu") for each in batch]
            self.loss = nn.functional.cross_entropy(self.model(x), y)  # first
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()  # last
            print(self.loss.item())


Trainer().run()
""",
    "a function that is the step": HEAD
    + '''\
def update(x, y):
    """One step."""
    loss = nn.functional.cross_entropy(model(x), y)  # first
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    return loss


for x, y in data:
    print(update(x, y).item())
''',
}
REFUSED = {
    "`best` is bound in some steps only, and read later": HEAD
    + """\
for i, (x, y) in enumerate(data):
    loss = nn.functional.cross_entropy(model(x), y)  # first
    if i % 2:
        best = loss.detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    if i > 2:
        print(best)
""",
    "a statement of it leaves its loop or function": HEAD
    + """\
for x, y in data:
    loss = nn.functional.cross_entropy(model(x), y)  # first
    if loss > 1e9:
        break
    loss.backward()
    optimizer.step()  # last
""",
}
ACTS = """\
import torch
from torch import nn

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, seen = torch.ones(1, 4), [1.0, 0.0, 0.0, 0.0]
for _ in range(8):
    values = model(torch.Tensor([seen]))  # call
    actions = torch.argmax(values, dim=1).cpu().numpy()
    seen = [float(number == actions[0]) for number in range(4)]
    optimizer.zero_grad()  # first
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()  # last
    print(loss.item())
"""


def step_in(file: Path, source: str, *findings: Finding) -> ProgramStep:
    file.write_text(source, encoding="utf-8")
    lines = source.split("\n")
    first, last = (
        next(n for n, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
        for mark in ("first", "last")
    )
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    around = [f.name for f in functions if f.lineno < first <= (f.end_lineno or 0)]
    name = around[-1] if around else "<module>"
    return replace(
        step_of(replace(PARTLY_SAFE, findings=findings)),
        location=Location(str(file), first, name),
        last_line=last,
        mode="training",
        host_values=("weight", "chosen"),
    )


def proposal(file: Path, source: str, *findings: Finding) -> Proposal:
    return CaptureStep().propose(step_in(file, source, *findings))


def printed(source: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_the_program_computes_the_same_through_the_function(source: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    made = changed_sources(proposal(file, source).changes)
    changed = made[str(file)][1]
    assert "@graphdoctor.capture\ndef " in changed
    eager = changed.replace("import graphdoctor\n", "\n").replace("@graphdoctor.capture\n", "")
    eager = eager.replace('device="cuda"', 'device="cpu"')
    assert printed(eager) == printed(source) != ""
    added = [line for line in unified(made, str(tmp_path)).split("\n") if line.startswith("+")]
    assert len(added) <= 40


def test_a_running_mean_is_computed_below_the_call(tmp_path: Path) -> None:
    source = PROGRAMS["a running mean of the loss, shown before the optimizer steps"]
    text = changed_sources(proposal(tmp_path / "program.py", source).changes)
    (_, after), *_ = text.values()
    assert after.index("loss = train_step(x, y)") < after.index("    if mean is None:")


def test_a_test_of_the_loop_s_counter_is_a_flag(tmp_path: Path) -> None:
    """The counter would be another number in each call, and each number another graph."""
    name = "gradients of several passes, counted by the loop"
    file, source = tmp_path / "program.py", PROGRAMS[name]
    (_, text), *_ = changed_sources(proposal(file, source).changes).values()
    assert "    if is_update:\n        optimizer.step()\n" in text
    assert "(x, y, passes, (i + 1) % passes == 0 or i + 1 == len(data))" in text
    (_, text), *_ = changed_sources(
        proposal(
            tmp_path / "doubled.py",
            PROGRAMS["a loss that is doubled in some steps, counted by the loop"],
        ).changes
    ).values()
    assert "    loss = train_step(x, y, bool(i % 3))\n" in text and "    if is_due:\n" in text
    shown = source.replace("loss.backward()\n", "loss.backward()\n        trace(i)\n")
    (_, text), *_ = changed_sources(proposal(tmp_path / "other.py", shown).changes).values()
    assert "is_update" not in text


def test_what_each_way_binds_is_not_bound_to_none_first(tmp_path: Path) -> None:
    source = PROGRAMS["a batch that is changed under a condition, and a loss that each way binds"]
    file = tmp_path / "program.py"
    assert "= None" not in changed_sources(proposal(file, source).changes)[str(file)][1]


def test_a_schedule_that_reads_the_loss_comes_below_the_call(tmp_path: Path) -> None:
    """As ReduceLROnPlateau does. `scaler.step(optimizer)` reads too, and is work of the step."""
    source = (
        HEAD
        + """\
for x, y in data:
    optimizer.zero_grad()  # first
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    scaler.step(optimizer)
    scheduler.step(loss)  # last
"""
    )
    file, lines = tmp_path / "program.py", source.split("\n")
    read = [
        replace(HOST_READ, location=Location(str(file), line, "<module>"), stack=())
        for line, text in enumerate(lines, 1)
        if ".step(" in text
    ]
    text = changed_sources(proposal(file, source, *read).changes)[str(file)][1]
    assert "    scaler.step(optimizer)\n    return loss\n" in text
    assert text.endswith("\n    loss = train_step(x, y)\n    scheduler.step(loss)  # last\n")


@pytest.mark.parametrize(
    "imported", ["import torch.distributions as D", "from torch import distributions as D"]
)
def test_distributions_of_a_renamed_package_are_not_checked(imported: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(f"{imported}\n\n\ndef base(x):\n    return D.Normal(x, 1.0)\n")
    assert TURNED_OFF in [
        getattr(each, "code", "") for each in unchecked_at(str(file), [(str(file), 5)])
    ]
    file.write_text(f"{imported}\n\n\ndef base(x):\n    return E.Normal(x, 1.0)\n")
    assert unchecked_at(str(file), [(str(file), 5)]) == ()


def test_distributions_are_not_checked_in_a_captured_step(tmp_path: Path) -> None:
    source = PROGRAMS["a loop that reads its loss in the middle"].replace(
        "model = nn.Sequential",
        "from torch.distributions import Normal\n\n\ndef sample(x):\n"
        "    drawn = Normal(x, 1.0)\n    return drawn.rsample()\n\n\nmodel = nn.Sequential",
        1,
    )
    file = tmp_path / "program.py"
    line = source.split("\n").index("    drawn = Normal(x, 1.0)") + 1
    read = replace(HOST_READ, location=Location(str(file), line, "sample"), stack=())
    text = changed_sources(proposal(file, source, read).changes)[str(file)][1]
    assert "torch.distributions.Distribution.set_default_validate_args(False)\n" in text
    elsewhere = replace(read, location=Location(str(file), line + 6, "<module>"))
    text = changed_sources(proposal(file, source, elsewhere).changes)[str(file)][1]
    assert "set_default_validate_args" not in text
    step = step_in(file, source, read, replace(read, location=Location(str(file), line + 6)))
    report, _ = with_patch(of_program(step), str(tmp_path))
    (handled,) = report.steps[0].handled
    assert handled == Handled.of(read, "no argument checks") and not report.steps[0].cured
    asked = tmp_path / "asked.py"
    checked = source.replace("Normal(x, 1.0)", "Normal(x, 1.0, validate_args=True)")
    step = step_in(asked, checked, replace(read, location=Location(str(asked), line, "sample")))
    report, _ = with_patch(of_program(step), str(tmp_path))
    assert report.steps[0].change and not report.steps[0].handled


def test_what_a_called_function_reads_is_replaced_there_as_its_finding_says(tmp_path: Path) -> None:
    source = PROGRAMS["a loop that reads its loss in the middle"].replace(
        "model = nn.Sequential",
        "def scaled(x):\n    return torch.mul(x, x.max().item())\n\n\nmodel = nn.Sequential",
    )
    file = tmp_path / "program.py"
    line = source.split("\n").index("    return torch.mul(x, x.max().item())") + 1
    text = "torch.mul(x, x.max())"
    edit = Edit(str(file), line, 12, line, 12 + len("torch.mul(x, x.max().item())"), text)
    read = replace(
        HOST_READ,
        rule="GD105",
        location=Location(str(file), line, "scaled"),
        edits=(edit,),
        stack=(),
    )
    made = proposal(file, source, read)
    assert f"    return {text}\n" in changed_sources(made.changes)[str(file)][1]
    assert made.handled == (Handled.of(read, "replaced code"),)
    other = replace(read, edits=(), location=Location(str(file), line + 1, "scaled"))
    made = proposal(file, source, read, other)  # one of two is left
    assert made.handled == (Handled.of(read, "replaced code"),)
    part = replace(edit, start_column=25, end_column=26, new_text="-1:")
    made = proposal(file, source, replace(read, edits=(part,)))
    assert "-1:" not in changed_sources(made.changes)[str(file)][1]


def test_a_file_without_torch_imports_it_for_a_cure_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "interpolation.py"
    file.write_text("import math\n\n\ndef check(t):\n    assert (t < 1).all()\n", encoding="utf-8")
    edit = Edit(str(file), 5, 5, 5, 25, "torch._assert_async((t < 1).all())")
    found = replace(HOST_READ, location=Location(str(file), 5, "check"), edits=(edit,))
    changes = cured_in_functions([found], str(tmp_path / "train.py"), range(9))[found]
    assert changed_sources(changes)[str(file)][1] == (
        "import math\nimport torch\n\n\ndef check(t):\n    torch._assert_async((t < 1).all())\n"
    )


def test_an_edit_of_the_steps_last_line_is_not_made_in_place(tmp_path: Path) -> None:
    """The change moves that line into the function."""
    source = PROGRAMS["a loop that reads its loss in the middle"]
    file = tmp_path / "program.py"
    line = next(n for n, text in enumerate(source.split("\n"), 1) if text.endswith("# last"))
    edit = Edit(str(file), line, 5, line, 14, "fused")
    own = replace(HOST_READ, location=Location(str(file), line, "<module>"), edits=(edit,))
    made = proposal(file, source, replace(own, rule="GD105", stack=()))
    assert made.changes == proposal(file, source).changes and not made.handled


@pytest.mark.parametrize("words", REFUSED)
def test_a_step_that_no_function_can_be_is_left_alone(words: str, tmp_path: Path) -> None:
    with pytest.raises(NoProposal, match=words.replace("(", "\\(")):
        proposal(tmp_path / "program.py", REFUSED[words])


def test_nothing_is_proposed_for_a_step_of_a_captured_function(tmp_path: Path) -> None:
    source = PROGRAMS["a function that is called for each epoch"]
    for decorator in ("@graphdoctor.capture", "@graphdoctor.capture(state=[model])"):
        file = tmp_path / f"{len(decorator)}.py"  # its tree is kept by the name
        captured = step_in(file, source.replace("def run_epoch", f"{decorator}\ndef run_epoch"))
        report, choice = with_patch(of_program(captured), str(tmp_path))
        assert choice.is_empty and report.patch is None
        assert report.steps[0].no_change == "its function is captured already"


def test_a_step_that_gets_no_faster_is_not_changed(tmp_path: Path) -> None:
    step = step_in(tmp_path / "a.py", PROGRAMS["a loop that reads its loss in the middle"])
    assert step.report is not None
    slow = replace(ESTIMATE, whole_speedup=Range(0.94, 0.99, 1.04))
    step = replace(step, report=replace(step.report, estimate=slow))
    report, choice = with_patch(of_program(step), str(tmp_path))
    assert choice.is_empty and report.patch is None
    page = program_page.render(report, Look())
    reason = "as the code is, graphs would not be faster: predicted 0.99x (0.94x to 1.04x)"
    assert f"no change (step 1): {reason}" in " ".join(page.split())
    assert "Try the change" not in page and "1 change" not in page


@pytest.mark.parametrize("trains", [True, False])
def test_a_model_that_a_captured_step_trains_is_not_captured_twice(
    trains: bool, tmp_path: Path
) -> None:
    """capture() refuses such a model where another call of it trains, as in the two steps of a GAN."""
    file = tmp_path / "train.py"
    step = step_in(file, PROGRAMS["a loop that reads its loss in the middle"])
    line = file.read_text(encoding="utf-8").split("\n").index(HEAD.split("\n")[4]) + 1
    model = CalledModule("Sequential", "model", str(file), line, 0, trains=trains)
    other = replace(
        step_of(COMPARED), location=Location(str(file), 99, "<module>"), modules=(model,)
    )
    report, _ = with_patch(of_program(replace(step, modules=(model,)), other), str(tmp_path))
    assert report.steps[0].change
    refused = "the captured step calls `model`, which cannot be captured twice"
    assert (report.steps[1].no_change == refused) == trains
    assert (report.steps[1].change == "") == trains


def test_a_network_acts_in_a_function_beside_the_captured_step_that_trains_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "acts.py"
    training = step_in(file, ACTS)
    line = next(n for n, text in enumerate(ACTS.split("\n"), 1) if text.endswith("  # call"))
    model = CalledModule("Linear", "model", str(file), line, 0, trains=True)
    acting = replace(
        step_of(replace(SAFE, strategies=())),
        location=Location(str(file), line, "<module>"),
        last_line=line,
        mode="inference",
        modules=(model,),
    )
    report, _ = with_patch(of_program(replace(training, modules=(model,)), acting), str(tmp_path))
    assert all(step.change for step in report.steps), [step.no_change for step in report.steps]
    assert report.patch is not None
    assert "+@graphdoctor.capture\n+@torch.no_grad()\n+def act(seen):\n" in report.patch.diff
    assert "+    loss = train_step()\n" in report.patch.diff


def test_a_change_says_what_happens_with_another_shape(tmp_path: Path) -> None:
    step = step_in(tmp_path / "train.py", PROGRAMS["a loop that reads its loss in the middle"])
    report, _ = with_patch(of_program(step), str(tmp_path))
    page = " ".join(program_page.render(report, Look(width=300)).split())
    said = (
        "A batch of another shape, such as a shorter last one, runs eagerly at first, and as a second graph if its "
        "shape repeats."
    )
    assert page.count(said) == 1


def test_the_speedup_waits_for_what_the_change_does_not_handle(tmp_path: Path) -> None:
    def proposed(name: str, *findings: Finding) -> Proposal:
        source = PROGRAMS["a loop that reads its loss in the middle"]
        step = step_in(tmp_path / name, source, *findings)
        assert step.report is not None
        whole = replace(ESTIMATE, whole_speedup=Range(2.0, 3.0, 4.0))
        return CaptureStep().propose(replace(step, report=replace(step.report, estimate=whole)))

    shown = PROGRAMS["a loop that reads its loss in the middle"].split("\n")
    line = shown.index("    total += loss.item()") + 1
    place = Location(str(tmp_path / "a.py"), line, "<module>")
    read = proposed("a.py", replace(HOST_READ, location=place))
    assert read.gain == Range(2.0, 3.0, 4.0)
    assert read.clause.endswith(" (3x (2x to 4x), predicted)")
    left = proposed("b.py", HOST_READ, replace(HOST_READ, rule="GD105"))
    assert left.gain is None
    assert left.clause.endswith(" (3x (2x to 4x), predicted once GD101 and GD105 are fixed)")


@pytest.mark.parametrize(
    ("statement", "by"),
    [
        ("scale = loss.item()", "replaced code"),
        ("print(loss.item())", "capture"),
        ("loss = loss * (2 * loss.item())", None),
        ("loss = scaled(loss)", None),
        ("print(scaled(loss))", "capture"),
    ],
)
def test_a_read_is_handled_if_it_leaves_the_captured_function(
    statement: str, by: Handling | None, tmp_path: Path
) -> None:
    """A read of the step's own lines, or of a function that they call."""
    source = f"""{HEAD}
def scaled(x):
    return x * (2 * x.item())


scale = 1.0
for x, y in data:
    optimizer.zero_grad()  # first
    loss = nn.functional.cross_entropy(model(x), y)
    {statement}
    (scale * loss).backward()
    optimizer.step()  # last
"""
    file = tmp_path / "program.py"
    own = source.split("\n").index(f"    {statement}") + 1
    place, stack = Location(str(file), own, "<module>"), ()
    if "scaled" in statement:
        called = source.split("\n").index("    return x * (2 * x.item())") + 1
        place, stack = Location(str(file), called, "scaled"), (place,)
    read = replace(HOST_READ, location=place, stack=stack)
    made = proposal(file, source, read)
    assert made.handled == ((Handled.of(read, by),) if by is not None else ())


AVERAGES = {  # the body of a loop, and the share of the way by which it moves `t` towards `p`
    "t.data.copy_(tau * p.data + (1 - tau) * t.data)": "tau",
    "t.data.copy_(t.data * (1.0 - tau) + p.data * tau)": "tau",
    "t.data.copy_(t.data * keep + (1.0 - keep) * p.data)": "1.0 - keep",
    "t.data.mul_(keep); t.data.add_((1 - keep) * p.data)": "1 - keep",
    "t.data.mul_(1 - tau).add_(p.data, alpha=tau)": "tau",
    "t.data.lerp_(p.data, tau)": "tau",
    # No average, or not of these:
    "t.data.copy_(tau * p.data + keep * t.data)": "",
    "t.data.copy_(tau * t.data + (1 - tau) * t.data)": "",
    "t.data.mul_(1 - tau); s.data.add_(tau * p.data)": "",
    "t.data.copy_(weight * p.data + (1 - weight) * t.data)": "",
    "t.data.copy_(p.data.mean() * p.data + (1 - p.data.mean()) * t.data)": "",
}


@pytest.mark.parametrize("body", AVERAGES)
@pytest.mark.parametrize("in_function", [False, True])
def test_an_average_of_parameters_is_one_call(body: str, in_function: bool, tmp_path: Path) -> None:
    """In the step, or in a function of its file; a `weight` that the host moves stays a tensor in the loop."""
    loop = f"for p, t in zip(model.parameters(), target.parameters()):\n    # Slowly.\n    {body}\n"
    own = "weight" if "weight" in body else 0.5
    follow = (
        f"def follow(model, target, s, tau, keep, weight):\n{textwrap.indent(loop, '    ')}\n\n"
    )
    source = (
        HEAD
        + f"""\
import copy

target, tau, keep, weight, s = copy.deepcopy(model), 0.25, 0.75, 0.5, torch.zeros(())
{follow if in_function else ""}
for i, (x, y) in enumerate(data):
    weight = 1.0 / (1 + i)
    loss = nn.functional.cross_entropy(model(x), y)  # first
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{f"    follow(model, target, s, tau, keep, {own})" if in_function else textwrap.indent(loop, "    ").rstrip()}  # last
    print(f"{{target(x).sum().item():.5f}}")
"""
    )
    file = tmp_path / "averages.py"
    changed = changed_sources(proposal(file, source).changes)[str(file)][1]
    share = AVERAGES[body]
    lists = "[t.data for t in target.parameters()], [p.data for p in model.parameters()]"
    call = "".join(f"# Slowly. torch._foreach_lerp_({lists}, {share}".split())
    written = "".join(changed.split()).replace(",)", ")")
    assert (call in written) == bool(share), changed
    assert changed.count("_foreach_lerp_") == bool(share)
    if share:
        eager = changed.replace("import graphdoctor\n", "\n").replace("@graphdoctor.capture\n", "")
        assert printed(eager) == printed(source) != ""


def test_functions_are_as_short_as_an_expert_writes_them(tmp_path: Path) -> None:
    def body(name: str) -> list[str]:
        file = tmp_path / f"{name.replace(' ', '_')}.py"  # its tree is kept by the name
        text = changed_sources(proposal(file, PROGRAMS[name]).changes)[str(file)][1]
        return text.split("@graphdoctor.capture\n", 1)[1].split("\n")

    accumulated = body("accumulated gradients whose batches are drawn between the passes")
    assert accumulated[:3] == [
        "def train_step(batches):",
        "    # Two passes.",
        "    for micro_step, (x, y) in enumerate(batches):",
    ]
    assert "        batches.append(get_batch())" in accumulated
    assert "    x, y = batches.pop()" in accumulated
    assert "    loss = train_step(batches)" in accumulated
    trainer = body("a trainer whose step reads and sets its attributes")
    assert trainer[0] == "def train_step(x, y, scale, optimizer, clip):"
    assert "    loss = nn.functional.cross_entropy(out, y) * scale" in trainer
    called = "self.loss = train_step(x, y, config.scale, self.optimizer, config.clip)"
    assert called in map(str.strip, trainer)
    trainer = body("a trainer that calls its model and its criterion")
    assert trainer[0] == "def train_step(criterion, model, x, y, optimizer):"
    assert "    loss = criterion(model(x), y)  # first" in trainer
    assert body("noise that NumPy draws in the middle")[0] == "def train_step(x, z, y, real):"
    drawn = body("a penalty that draws in a function, and a branch that reports")
    assert drawn[0] == "def train_step(x, y, share):"
    assert "torch.FloatTensor(np.random.random((x.data.size(0), 1))))" in "".join(drawn)
    assert "    share_right = np.mean(np.equal(right, y.tolist()))" in drawn[12:]
    after = drawn.index("        net_loss = net_step(x)")
    assert drawn[after + 1 : after + 3] == [
        "        print(i, done, net_loss.item())",
        "        done += 2  # last",
    ]
    branch = body("two optimizers, one of which steps every second time")
    assert "        actor_loss, tuned, alpha = actor_step(x, alpha)" in branch
    assert "    q_loss = train_step(x, alpha)" in branch
    assert "            alpha = tuned.exp().detach()  # last" in branch
    followed = body("networks that follow the trained one")
    assert followed[0] == "def train_step(x):"
    assert followed[followed.index("    follow(average, model)") + 1] == "    return loss"
    assert followed[followed.index("def update_parameters():") - 1] == "@graphdoctor.capture"
    where = followed.index("    # Every second step.")  # of the branch, which stays
    assert followed[where - 1] == "" and followed[where + 1] == "    if step % 2 == 0:"
    moved = followed.index("    torch._foreach_lerp_(")
    assert followed[moved + 1 : moved + 5] == [
        "        [target_param.data for target_param in target.parameters()],",
        "        [param.data for param in model.parameters()],",
        "        share,",
        "    )",
    ]
    second = followed.index("    if step % 2 == 0:")
    assert followed[second + 1 : second + 3] == [
        "        update_parameters()",
        "    for param, slow_param in zip(model.parameters(), average.parameters()):",
    ]
    clipped = body("figures of a block without gradients")
    assert clipped[4] == "        step_clipped = (far > 0.1).float().mean()"
    assert "    clipped += [step_clipped]" in clipped
    assert "    return far, step_clipped, loss" in clipped
    read = body("figures that the host reads in each step")
    assert read[:12] == [
        "def train_step(x, y):",
        "    out = model(x)  # first",
        "    loss = nn.functional.cross_entropy(out, y)",
        "    accuracy = (out.argmax(1) == y).float().mean()",
        "    optimizer.zero_grad()",
        "    loss.backward()",
        "    step_right = out.argmax(1).eq(y).sum()",
        "    out_max = out.detach().abs().max()",
        "    norm = out.norm()",
        "    optimizer.step()  # last",
        "    return out, loss, accuracy, step_right, out_max, norm",
        "",
    ]
    call = read.index("    out, loss, accuracy, step_right, out_max, norm = train_step(x, y)")
    assert read[call + 1 :][:7] == [
        "    accuracies.append(accuracy.item())",
        "    # All of them.",
        "    right += step_right.item()",
        "    print(round(float(out_max), 4), (out > i).sum().item(), loss.item())",
        "    if i % 2 == 0:",
        "        print(out.mean().item())",
        "    norm = round(norm.item(), 3)",
    ]
    below = body("an accuracy below the step")
    assert below[6:11] == [
        "    # Over all classes.",
        "    _, predicted = out.max(1)",
        "    step_correct = predicted.eq(y).sum()",
        "    top = out.topk(2, 1)[1]",
        "    accuracy = (top[:, 0] == y).float().mean()",
    ]
    assert below[11] == "    return loss, step_correct, accuracy"
    call = below.index("    loss, step_correct, accuracy = train_step(x, y)")
    assert below[call + 1 : call + 5] == [
        "    train_loss += loss.item()",
        "    total += y.size(0)",
        "    correct += step_correct.item()",
        "    accuracies.append(accuracy.item())",
    ]
    returned = body("an accuracy that a function with a step returns")
    assert returned[0] == "def train_step(x, y):"
    assert "    accuracies.append(accuracy.item())" in returned
    below = body("a figure below a branch that steps an optimizer")
    assert "    print(out.mean().item(), loss.item())" in below
    host = body("a weight that changes and indices of NumPy")
    (call,) = (line for line in host if line.startswith("    loss = train_step("))
    assert 'torch.as_tensor(weight, device="cuda"), x, torch.as_tensor(chosen), y)' in call
    assert "def update(x, y):" in body("a function that is the step")[0]


METHOD = """\
import torch
from torch import nn


class Agent:
\tdef __init__(self):
\t\tself.actor, self.critic, self.target = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
\t\tself.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.1)
\t\tself.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)
\t\tself.share, self.calls, self.weight_of_loss = 0.25, 0, 0.5

\tdef train(self, buffer):
\t\tself.calls += 1
\t\tx = buffer.sample(3)
\t\tcritic_loss = (self.critic(x) - self.target(x)).square().mean() * self.weight_of_loss  # first
\t\tself.critic_optimizer.zero_grad()
\t\tcritic_loss.backward()
\t\tself.critic_optimizer.step()

\t\t# Every second call.
\t\tif self.calls % 2 == 0:
\t\t\tactor_loss = -self.critic(self.actor(x)).mean()
\t\t\tself.actor_optimizer.zero_grad()
\t\t\tactor_loss.backward()
\t\t\tself.actor_optimizer.step()
\t\t\tfor param, target_param in zip(self.critic.parameters(), self.target.parameters()):
\t\t\t\ttarget_param.data.copy_(self.share * param.data + (1 - self.share) * target_param.data)  # last
"""


def test_a_method_gets_functions_in_the_style_of_its_file(tmp_path: Path) -> None:
    """As sfujim/TD3: tabs, one more for what is in brackets, and optimizers that attributes hold."""
    changes = proposal(tmp_path / "program.py", METHOD).changes
    (text,) = (after for _, after in changed_sources(changes).values())
    lines = text.split("\n")
    assert "def actor_step(" in text and "def critic_step(" in text
    assert "\t\t# Every second call.\n\t\tif self.calls % 2 == 0:\n\t\t\tactor_step(" in text
    called = lines.index("\ttorch._foreach_lerp_(")
    assert all(line.startswith("\t\t[") for line in lines[called + 1 : called + 3])
    assert not [line for line in lines if line.startswith(("    ", "\t\t\t\t"))]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_branch_that_stays_in_the_loop_is_handled_by_the_change(
    is_kept: bool, tmp_path: Path
) -> None:
    file, source = (
        tmp_path / "a.py",
        PROGRAMS["two optimizers, one of which steps every second time"],
    )
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "# the actor" in text)
    place = Location(str(file), line if is_kept else line + 5, "<module>")
    branch = replace(
        HOST_READ, rule="GD201", effect="replay-is-wrong", location=place, stack=(), columns=None
    )
    made = proposal(file, source, branch)
    assert made.handled == ((Handled.of(branch, "capture"),) if is_kept else ())
