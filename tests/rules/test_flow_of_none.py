"""Whether `x is None` does not hang on a value, so that no such branch is said to be decided by one."""

from __future__ import annotations

import torch

from tests.support.diagnosing import diagnosed


def exists(value):
    return value is not None


def limited(x, limit=None):
    if not exists(limit):
        limit = x.abs().max().item()
    if limit is None or isinstance(limit, str):
        return x
    return x.clamp(-1, 1) * limit


def chosen(x):
    limit = x.abs().max().item()
    if exists(limit) and limit > 1.0:
        return x * 2
    return x - 1


def rules_of(step) -> list[tuple[str, str]]:
    made = diagnosed(lambda: (step, (torch.randn(8, device="cuda"),)))
    return [(finding.rule, finding.message) for finding in made.findings]


def test_a_read_value_that_is_only_asked_whether_it_is_none_decides_no_branch() -> None:
    (found,) = rules_of(limited)
    assert found[0] == "GD101"


def test_a_read_value_that_is_also_compared_decides_that_branch() -> None:
    (found,) = rules_of(chosen)
    assert found[0] == "GD107"
    assert "limit > 1.0" in found[1]
