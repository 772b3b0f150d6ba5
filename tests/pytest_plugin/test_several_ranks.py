"""`graph_safe(ranks=2)`: what a test checks runs on ranks of its own, and fails as any other check."""

from __future__ import annotations

import pytest

from graphdoctor.device.processes import forked
from graphdoctor.pytest_plugin.checker import spec_of
from graphdoctor.values.errors import UsageError
from tests.support import warm

MODEL = """
    import torch
    import torch.distributed as dist

    def waiting(waits=True):
        dist.init_process_group("nccl")

        def step(x):
            y = x * 2
            dist.all_reduce(y)
            if waits and dist.get_rank() == 1:
                torch.cuda.synchronize()
            return y

        return step, (torch.ones(4, device="cuda"),)

    def safe():
        return waiting(waits=False)
"""
TESTS = """
    import pytest
    from model import safe

    @pytest.mark.graph_safe(ranks=2)
    def test_safe(graphdoctor):
        assert len(graphdoctor.check(safe).ranks) == 2

    @pytest.mark.graph_safe(ranks=2)
    def test_waiting(graphdoctor):
        graphdoctor.check("model.py:waiting")

    @pytest.mark.graph_safe(ranks=2)
    def test_inputs(graphdoctor):
        graphdoctor.check(safe, 1)
"""


def test_a_test_of_two_ranks_passes_or_shows_whose_hazard_it_is(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "command", warm.job)
    pytester.mkdir(".git")
    pytester.makepyfile(model=MODEL)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *AssertionError: the step is *unsafe as a CUDA graph, 1 hazard*",
            "E *GD108 explicit-synchronize*",
            "E *What: On rank 1 only: *",
            "*check() of several ranks takes no inputs*",
        ]
    )


def test_what_other_processes_cannot_find_is_refused() -> None:
    assert spec_of("models/net.py:make") == "models/net.py:make"
    with pytest.raises(UsageError, match="at the top of a file; it was given function"):
        spec_of(lambda: None)
