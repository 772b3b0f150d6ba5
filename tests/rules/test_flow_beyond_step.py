"""A step that is some lines of a function: what the rest of it does with a value is no part of the step."""

from __future__ import annotations

from pathlib import Path

from graphdoctor.rules.causes.advice import for_branch
from graphdoctor.rules.causes.flow import value_flow
from graphdoctor.values.locations import Lines, Location

EPISODES = """\
def act(policy, state):
    action = policy(state).item()
    if action < 0:
        action = 0
    return action

def train(policy, env):
    total = 0
    for episode in range(9):
        for t in range(99):
            action = act(policy, state)
            state, reward, done = env.step(action)
            if done:
                break
        total = total + reward
        policy.learn()
        if total > 475:
            print("solved")
"""


def test_a_value_decides_the_branches_of_the_step_and_of_what_it_calls(tmp_path: Path) -> None:
    file = str(tmp_path / "episodes.py")
    Path(file).write_text(EPISODES)
    frames = (Location(file, 2), Location(file, 11))
    texts = [each.text for each in value_flow(frames, ()).branches]
    assert texts == ["if action < 0:", "if total > 475:", "if done:"]
    inside = value_flow(frames, (), Lines(file, 10, 16)).branches
    assert [each.text for each in inside] == ["if action < 0:", "if done:"]
    # A loop that a value ends has no second branch to compute.
    assert "torch.where" not in for_branch(inside[0])
    assert for_branch(inside[1]).startswith("Run a fixed number of iterations")
