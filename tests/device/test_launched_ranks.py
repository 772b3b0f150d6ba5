"""What ranks that a launcher starts share with each other: where they meet, and where each is when time is over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from graphdoctor.device.processes import launched, overdue
from graphdoctor.device.processes.overdue import Stand, did_not_end


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """That of a launcher, and this process one of its two ranks."""
    made = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
    )
    told = {
        "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(made.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(launched.STARTED_HERE, raising=False)
    return made


def test_reports_of_an_attempt_are_not_joined_with_those_of_the_one_before(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert launched.gathered("of the first attempt") is None
    monkeypatch.setenv("RANK", "0")
    assert launched.said_by_all("report", "mine", limit_s=0.01)[1] == b"of the first attempt"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert launched.said_by_all("report", "mine", limit_s=0.01) == {0: b"mine"}


def test_groups_of_an_attempt_do_not_find_what_those_of_the_one_before_left(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launched.store_of_group(1) is None  # torch's own is good in the first attempt
    kept = {}
    for attempt in ("1", "2"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        found = launched.store_of_group(1)
        assert found is not None
        kept[attempt], *place = found
        assert place == [0, 2]
    kept["1"].set("address", "of a process that ended")
    assert kept["1"].check(["address"])
    assert not kept["2"].check(["address"])


def test_a_rank_that_has_no_report_in_time_is_named(store: TCPStore) -> None:
    with pytest.raises(launched.CannotDoItHere, match=r"rank 1 had no report 0\.01 s after rank 0"):
        launched.gathered("mine", limit_s=0.01)


def test_a_block_that_ends_in_time_leaves_no_thread_and_no_alarm(store: TCPStore) -> None:
    import threading

    before = threading.active_count()
    with overdue.ended_after(60.0):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_the_sentence_begins_with_the_ranks_that_others_wait_for() -> None:
    import torch

    collective = f"{torch.__path__[0]}/distributed/distributed_c10d.py"
    waits = Stand.of([(collective, 3, "all_reduce"), ("/home/me/train.py", 7, "step")])
    hangs = Stand.of([("/home/me/data.py", 5, "read"), ("/home/me/train.py", 6, "step")])
    message, lines = did_not_end({0: waits, 1: hangs, 2: Stand.of([])}, 30.0)
    assert message == (
        "the ranks did not end within 30 s: rank 1 was at /home/me/data.py:5 (read),"
        " rank 2 was outside the model's own code, rank 0 waited for the others at /home/me/train.py:7 (step)"
    )
    assert lines.splitlines() == [
        "rank 0:", '  File "/home/me/train.py", line 7 in step',
        "rank 1:", '  File "/home/me/data.py", line 5 in read', '  File "/home/me/train.py", line 6 in step',
    ]  # fmt: skip


def test_what_started_graphdoctor_is_not_where_a_rank_is() -> None:
    stand = Stand.of(
        [
            ("/home/me/train.py", 7, "step"),
            (launched.__file__, 1, "x"),
            ("/bin/graphdoctor", 6, "<module>"),
        ]
    )
    assert (stand.at, stand.waits) == ("/home/me/train.py:7 (step)", True)
    assert "/bin/graphdoctor" not in stand.frames
