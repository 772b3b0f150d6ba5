"""The reports of all ranks become one, which says what they agree on and where they part."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.diagnose.all_ranks import merged
from tests.support.checking import finding, report


def test_what_all_ranks_say_is_said_of_all() -> None:
    one = report(finding(3))
    whole = merged([one, one])
    assert whole.reason == f"On all 2 ranks: {one.reason}"
    assert (whole.verdict, whole.findings, whole.limits) == ("unsafe", one.findings, one.limits)


def test_the_worst_rank_gives_the_verdict_and_is_named_with_what_it_alone_has() -> None:
    safe, unsafe = report(), report(finding(3))
    whole = merged([safe, unsafe, safe])
    assert (whole.verdict, whole.reason) == ("unsafe", f"On rank 1: {unsafe.reason}")
    assert [one.message for one in whole.findings] == [
        f"On rank 1 only: {unsafe.findings[0].message}"
    ]
    assert [(one.rank, one.verdict) for one in whole.ranks] == [
        (0, "safe"), (1, "unsafe"), (2, "safe"),
    ]  # fmt: skip


def test_ranks_that_run_other_operators_are_told() -> None:
    short = report()
    longer = replace(short, operators=short.operators + 1)
    assert merged([short, short]).limits == short.limits
    (said,) = set(merged([short, longer]).limits) - set(short.limits)
    assert f"{longer.operators} operators on rank 1" in said
