"""GD217: a later step differs, by Python state that each step changes."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import for_state_branch, for_state_number
from graphdoctor.rules.causes.branch_points import branch_at
from graphdoctor.rules.causes.reads import host_hits, sources_of
from graphdoctor.rules.rule import Hit, RecordingRule
from graphdoctor.values.host_events import DiffersByState, ItemTaken
from graphdoctor.values.recording import Recording


class StateBranch(RecordingRule):
    """A branch depends on Python state that each step changes.

    The step counts its calls, fills a list or moves through a schedule in Python, and a branch or a loop
    reads that state: `if self.calls % 16 == 0`, `while epoch < warmup`. A later step runs other GPU work
    than the captured one. A replay runs no Python, so it always takes the captured branch.

    graphdoctor runs the step with the state of later steps, up to some 10,000 steps ahead, and compares
    operators, shapes, numbers and memory. A branch that only logs or prints is not reported.

    Move the branch outside the step and capture one graph per branch, or keep the state in a GPU tensor and
    select with `torch.where`. `graphdoctor.capture()` of a step captures one graph for each value of a flag
    that the step gets as an argument.
    """

    id = "GD217"
    name = "state-branch"
    effect = "replay-is-wrong"
    evidence = (
        "documentation: CUDA C++ Programming Guide, CUDA Graphs: a graph launch runs no host code"
    )
    fix = (
        "Move the branch outside the step and capture one graph per branch, or keep the state in a GPU"
        " tensor and select with `torch.where`."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        # GD218 reports the elements that the step takes.
        taken = [one.flow for one in sources_of(recording) if one.kind is ItemTaken]
        hits = host_hits(
            recording,
            DiffersByState,
            lambda event: (
                f"{event.difference}, because the step changes {event.name}."
                " A replay always takes the captured branch."
            ),
            _fix,
        )
        for hit in hits:
            if hit.location is None or not any(flow.feeds((hit.location,)) for flow in taken):
                yield hit

    @staticmethod
    def bad() -> object:
        import torch

        class Warmed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(16, 16, device="cuda")
                self.calls = 0

            def forward(self, x):
                self.calls += 1
                if self.calls > 100:  # <- GD217
                    return self.linear(x)
                return 0.5 * self.linear(x)

        return Warmed(), (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Warmed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(16, 16, device="cuda")
                self.register_buffer("calls", torch.zeros((), device="cuda"))

            def forward(self, x):
                self.calls.add_(1)
                y = self.linear(x)
                return torch.where(self.calls > 100, y, 0.5 * y)

        return Warmed(), (torch.randn(8, 16, device="cuda"),)


def _fix(event: DiffersByState) -> str:
    if event.location is None:
        return ""
    branch = branch_at(event.location)
    return (
        for_state_branch(branch, event.name) if branch is not None else for_state_number(event.name)
    )
