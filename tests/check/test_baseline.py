"""The baseline file: sorted, an entry a line, without line numbers; and every way to spoil it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.check.baseline import Accepted, Baseline, Entry, make, read, render
from graphdoctor.values.errors import UsageError

ENTRIES = [
    Entry("b.py", "GD101", "x.item()", "net"),
    Entry("a.py", "GD201", "y()", "net"),
    Entry("a.py", "GD101", "z.tolist()", "net", 2),
    Entry("a.py", "GD101", "z.tolist()", "net"),
]
TARGETS = [Accepted("net", 1, 20, 2, 0.5, "partly-safe", "emulated", "2.13.0")]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
entries = st.builds(Entry, texts, texts, texts, texts, st.integers(1, 3))
figures = st.builds(
    Accepted,
    texts,
    st.integers(0),
    st.integers(0),
    st.integers(0),
    st.floats(0, 1),
    texts,
    texts,
    texts,
)


def read_text(folder: Path, text: str | bytes) -> Baseline:
    path = folder / "baseline.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


@given(st.lists(entries), st.lists(figures))
def test_what_is_written_is_read_again(
    tmp_path_factory, found: list[Entry], accepted: list[Accepted]
) -> None:
    folder = tmp_path_factory.mktemp("baseline")
    baseline = make(found, accepted)
    assert read_text(folder, render(baseline)) == baseline


@given(st.permutations(ENTRIES))
def test_order_of_findings_does_not_show(order: list[Entry]) -> None:
    assert render(make(order, TARGETS)) == render(make(ENTRIES, TARGETS))


def test_one_entry_a_line_sorted_and_without_line_numbers() -> None:
    lines = render(make(ENTRIES, TARGETS)).splitlines()
    entries = [line for line in lines if '"rule"' in line]
    places = [(line.split('"')[3], line.split('"')[7]) for line in entries]  # path and rule
    assert len(entries) == len(ENTRIES) and places == sorted(places)
    assert all(line.endswith("},") for line in entries)
    assert '"line"' not in "".join(lines)


def test_missing_file_accepts_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == Baseline()


def test_union_merge_of_two_branches_is_the_union(tmp_path: Path) -> None:
    """With `merge=union` git keeps the lines of both sides; each side added and removed one."""
    ours = make([*ENTRIES[1:], Entry("a.py", "GD104", "ours", "net")], TARGETS)
    theirs = make([*ENTRIES[:-1], Entry("z.py", "GD104", "theirs", "net")], TARGETS)
    for name, baseline in (("base", make(ENTRIES, TARGETS)), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_text(render(baseline), encoding="utf-8")
    merged = subprocess.run(
        ["git", "merge-file", "--union", "-p", "ours", "base", "theirs"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    ).stdout
    added = {Entry("a.py", "GD104", "ours", "net"), Entry("z.py", "GD104", "theirs", "net")}
    assert read_text(tmp_path, merged).entries >= added


def test_merge_conflict_marks_are_named_with_their_line(tmp_path: Path) -> None:
    text = render(make(ENTRIES, TARGETS)).replace(
        '{"path": "b.py"', '<<<<<<< ours\n{"path": "b.py"'
    )
    with pytest.raises(UsageError, match=r"merge-conflict markers \(line 7\).*--prune"):
        read_text(tmp_path, text)


def test_newer_version_says_upgrade(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has version 99, newer than version 1.*upgrade"):
        read_text(tmp_path, '{"version": 99, "unheard-of": true}')


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 0}', '{"version": 1, "findings": 3}', "\udcff", "{"]
)
def test_anything_else_is_no_baseline(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"baseline\.json"):
        read_text(tmp_path, text.encode("utf-8", "surrogateescape"))


def test_folder_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the baseline"):
        read(tmp_path)
