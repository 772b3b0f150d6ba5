"""The saved report: nothing is lost, the schema holds, a broken file is named in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdoctor
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import SCHEMA_VERSION, Report
from graphdoctor.values.watched import WatchReport
from tests.support.lanes import many_lanes
from tests.support.reports import PARTLY_SAFE, SAFE, WRONG
from tests.support.schemas import schema_of

change = msgspec.structs.replace
DRAWN = change(PARTLY_SAFE, lanes=many_lanes(5, layers=1))


def written(report: Report) -> str:
    return written_as("json", report, Look())


@pytest.mark.parametrize("report", [PARTLY_SAFE, SAFE, DRAWN], ids=["partly-safe", "safe", "drawn"])
def test_what_is_written_is_read_again(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(written(report), encoding="utf-8")
    assert graphdoctor.Report.load(path) == graphdoctor.Report.of(report)


@pytest.mark.parametrize("report", [PARTLY_SAFE, SAFE, DRAWN], ids=["partly-safe", "safe", "drawn"])
def test_what_is_written_follows_the_schema(report: Report) -> None:
    jsonschema.Draft202012Validator(schema_of("report")).validate(json.loads(written(report)))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_read_again(text: str) -> None:
    report = change(SAFE, reason=text, limits=(text,))
    assert parsed(written(report).encode(), Report, name="x") == report


def test_lone_surrogate_becomes_visible_text() -> None:
    report = parsed(written(change(SAFE, reason="a\ud800b")).encode(), Report, name="x")
    assert report.reason == r"a\ud800b"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0])
def test_any_number_is_read_again(number: float) -> None:
    check: Any = WRONG.verification
    (difference,) = check.differences
    differences = (change(difference, max_abs=number),)
    outcome = change(WRONG, verification=change(check, differences=differences))
    text = written(change(SAFE, captures=(outcome,)))
    jsonschema.Draft202012Validator(schema_of("report")).validate(json.loads(text))
    (again,) = parsed(text.encode(), Report, name="x").captures
    assert again.verification is not None
    assert repr(again.verification.differences[0].max_abs) == repr(number)


@given(st.integers(min_value=0, max_value=len(written(PARTLY_SAFE).rstrip().encode()) - 1))
def test_report_cut_short_anywhere_says_so(length: int) -> None:
    with pytest.raises(UsageError, match=r"^r\.json is (cut short|empty); run"):
        parsed(written(PARTLY_SAFE).encode()[:length], Report, name="r.json")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"{} {}", "is not a graphdoctor report|is not JSON"),
        (b"[]", "is not a graphdoctor report"),
        (b"{}", "is not a graphdoctor report"),
        (b'{"schema_version": "x"}', "is not a graphdoctor report"),
        (b'{"schema_version": 1}', "is not a graphdoctor report"),
        (b"[" * 100_000, "is not a graphdoctor report"),
        (b'{"x":' + b"[" * 100_000, "is not a graphdoctor report|is cut short"),
    ],
)
def test_what_is_no_report_is_refused_in_a_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        parsed(content, Report, name="r.json")
    assert "\n" not in str(caught.value)


def test_another_file_is_named_for_what_it_is() -> None:
    with pytest.raises(UsageError, match=r"host\.toml is TOML, as hosts.*`--host host\.toml` or"):
        parsed(b'name = "slow"', Report, name="host.toml")
    with pytest.raises(UsageError, match=r"others save: it begins with 'epoch 1'$"):
        parsed(b"epoch 1\nloss 2\n", Report, name="log.txt")
    with pytest.raises(UsageError, match=r"others save: it is no text$"):
        parsed(b"\x80\x02}q\x00", Report, name="model.pt")


def test_newer_schema_asks_for_an_upgrade() -> None:
    newer = {"schema_version": SCHEMA_VERSION + 1, "something": "else"}
    with pytest.raises(UsageError, match="newer than version 1 that this graphdoctor reads; upg"):
        parsed(json.dumps(newer).encode(), Report, name="r.json")


def test_what_another_command_saved_is_no_newer_report() -> None:
    watched = {name: None for name in WatchReport.__struct_fields__}
    with pytest.raises(UsageError, match="is what `graphdoctor watch` saved"):
        parsed(
            json.dumps(watched | {"schema_version": SCHEMA_VERSION + 1}).encode(),
            Report,
            name="w.json",
        )


def test_older_schema_asks_for_a_new_analysis() -> None:
    with pytest.raises(UsageError, match="analyze"):
        parsed(b'{"schema_version": 0}', Report, name="r.json")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the report .*gone\.json: No such file"):
        graphdoctor.Report.load(tmp_path / "gone.json")


def test_folder_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        graphdoctor.Report.load(tmp_path)


def test_a_report_saved_before_regions_had_needs_is_read() -> None:
    saved = json.loads(written_as("json", PARTLY_SAFE, Look()))
    for region in saved["regions"]:
        region.pop("needs", None)
    assert [
        region.needs for region in parsed(json.dumps(saved).encode(), Report, name="r.json").regions
    ] == [(), ()]
