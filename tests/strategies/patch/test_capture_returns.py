"""What computes the returns of a rollout becomes a function beside the training step, and gives what it gave before."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies.patch.edits.capture_returns import CaptureReturns
from graphdoctor.strategies.patch.edits.edit import NoProposal
from graphdoctor.strategies.patch.made import with_patch
from graphdoctor.strategies.patch.source import changed_sources
from graphdoctor.values.locations import Location
from tests.strategies.patch.test_capture_step import printed, step_in
from tests.support.reports import of_program

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
STEPS, GAMMA = 5, 0.9
"""
SETUP = """\
critic = nn.Linear(3, 1).to("cuda")
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
seen = torch.zeros(STEPS, 2, 3, device="cuda")
rewards, dones, values = (torch.zeros(STEPS, 2, device="cuda") for _ in range(3))
state, done = torch.ones(2, 3, device="cuda"), torch.zeros(2, device="cuda")
"""
RETURNS = """\
        for t in reversed(range(STEPS)):
            if t == STEPS - 1:
                going, following = 1.0 - done, critic_of_last
            else:
                going, following = 1.0 - dones[t + 1], values[t + 1]
            later = advantages[t + 1] if t + 1 < advantages.shape[0] else 0.0
            delta = rewards[t] + later * 0 + GAMMA * following * going - values[t]
            advantages[t] = last = delta + GAMMA * 0.95 * going * last
"""
LOOP = f"""\
for iteration in range(8):
    for step in range(STEPS):
        seen[step], dones[step] = state, done
        with torch.no_grad():
            values[step] = critic(state).flatten()
        state = torch.tanh(state + values[step][:, None] / 3)
        rewards[step], done = state.sum(1), (state[:, 0] > 0.9).float()
    # The returns.
    with torch.no_grad():
        critic_of_last = critic(state).reshape(-1)
        advantages = torch.zeros_like(rewards)
        last = 0
{RETURNS}\
        returns = advantages + values
    for part in range(STEPS):
        optimizer.zero_grad()  # first
        loss = (critic(seen[part]).flatten() - returns[part]).pow(2).mean()
        loss.backward()
        optimizer.step()  # last
    print(advantages.tolist(), loss.item())
"""
IN_FUNCTION = (
    SETUP
    + "\n\n"
    + "def train(critic, optimizer, seen, rewards, dones, values, state, done):\n"
    + "    advantages = torch.zeros_like(rewards)\n"
    + "".join(f"    {line}\n" for line in LOOP.splitlines() if "torch.zeros_like" not in line)
    + "\n\ntrain(critic, optimizer, seen, rewards, dones, values, state, done)\n"
)
PROGRAMS = {
    "the statements of a file": (
        HEAD + SETUP + LOOP,
        [
            "def compute_returns(state, done):",
            "        advantages, returns = compute_returns(state, done)",
        ],
    ),
    "the statements of a function, which write into storage that it keeps": (
        HEAD + IN_FUNCTION,
        [
            "def compute_returns(critic, state, done, dones, values, advantages, rewards):",
            "            returns = compute_returns(critic, state, done, dones, values, advantages, rewards)",
        ],
    ),
}
REFUSED = {
    "a number of rounds that the loop binds": ("(STEPS)):\n            if", "(length)):\n            if"),
    "the loop's counter": ("GAMMA * 0.95", "GAMMA ** iteration"),
    "a value that the host reads": ("going * last\n", "going * last.sum().item()\n"),
    "the model in its rounds": ("1.0 - dones[t + 1], values[t + 1]", "1.0, critic(seen[t])[:, 0]"),
    "a branch on what it reads": ("if t == STEPS - 1", "if dones[t, 0]"),
    "a branch on what the loop binds": ("if t == STEPS - 1", "if done.any()"),
    "a branch on what it computes": ("if t == STEPS - 1", "if advantages.any()"),
    "gradients": ("    with torch.no_grad():\n        critic_of", "    if True:\n        critic_of"),
    "NumPy": ("advantages = torch", "advantages = np"),
    "a list that gets longer": ("    # The returns.", "    values.append(state)"),
}  # fmt: skip


def changed(file: Path, source: str) -> str:
    proposal = CaptureReturns().propose(step_in(file, source))
    return changed_sources(proposal.changes)[str(file)][1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_returns_are_computed_in_a_function_that_is_replayed(name: str, tmp_path: Path) -> None:
    source, lines = PROGRAMS[name]
    text = changed(tmp_path / f"{len(name)}.py", source)
    assert {*lines} <= {*text.split("\n")}, text
    on_cpu = source.replace("cuda", "cpu")
    eager = text.replace("import graphdoctor\n", "\n").replace("@graphdoctor.capture\n", "")
    assert printed(eager.replace("cuda", "cpu")) == printed(on_cpu) != ""
    out, namespace = io.StringIO(), dict[str, object]()
    with EmulatedDevice(), contextlib.redirect_stdout(out):
        exec(compile(text, str(tmp_path / f"{len(name)}.py"), "exec"), namespace)
    assert out.getvalue() == printed(on_cpu)
    assert namespace["compute_returns"].replayed >= 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", REFUSED)
def test_a_block_that_no_graph_could_replay_stays_as_it_is(name: str, tmp_path: Path) -> None:
    before, after = REFUSED[name]
    source = (HEAD + SETUP + LOOP).replace("    # The", "    length = int(done.sum())\n    # The")
    assert before in source
    with pytest.raises(NoProposal, match="no loop without gradients"):
        changed(tmp_path / f"{len(name)}.py", source.replace(before, after, 1))


def test_the_step_can_be_captured_without_its_returns(tmp_path: Path) -> None:
    """If the program computes otherwise with both, its trial goes on with the step alone."""
    step = step_in(tmp_path / "both.py", HEAD + SETUP + LOOP)
    _, choice = with_patch(of_program(step), str(tmp_path))
    assert [each.edit for each in choice.proposals[0]][:2] == [
        "capture the step and the returns",
        "capture the step",
    ]


def test_host_syncs_of_the_returns_are_none_between_the_steps(tmp_path: Path) -> None:
    """The change captures these lines besides the step that was diagnosed."""
    source, file = HEAD + SETUP + LOOP, tmp_path / "lines.py"
    captured = CaptureReturns().propose(step_in(file, source)).captured
    inside = [
        text.strip()
        for number, text in enumerate(source.split("\n"), 1)
        if any(lines.holds(Location(str(file), number)) for lines in captured)
    ]
    assert "returns = advantages + values" in inside[-1]
    assert not any("backward" in text or "torch.no_grad" in text for text in inside)
