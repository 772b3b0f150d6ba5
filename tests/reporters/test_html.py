"""The report as one HTML file: nothing in it is obeyed, nothing is fetched, and a saved report gives the same."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdoctor
from graphdoctor.cli import main
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.finding import IdleComment, Suppression
from graphdoctor.values.report import Report
from tests.support.checking import HOSTILE
from tests.support.lanes import many_lanes
from tests.support.parsed import Parsed
from tests.support.reports import (
    BASE,
    COMPARED,
    COMPARED_ON_GPU,
    FILE,
    GOLDEN_REPORTS,
    PARTLY_SAFE,
    SAFE,
    at,
)

change = msgspec.structs.replace
MAKES_PARTS = {"\n", "`", "."}  # of paragraphs, of code in a line, of a module's path
DRAWN = change(COMPARED, lanes=many_lanes(40, layers=2, file=FILE))


def page(report: Report, base: str = BASE) -> str:
    return written_as("html", report, Look(base=base))


def with_text_everywhere(text: str) -> Report:
    """Each text that a model, a path or a program can decide."""
    value = json.loads(written_as("json", DRAWN, Look()))
    kept = {
        "verdict",
        "effect",
        "mode",
        "certainty",
        "status",
        "scope",
        "device",
        "basis",
        "word",
        "strategy",
    }

    def filled(one: object, key: str = "") -> object:
        if isinstance(one, dict):
            return {name: filled(item, name) for name, item in one.items()}
        if isinstance(one, list):
            return [filled(item, key) for item in one]
        return text if isinstance(one, str) and key not in kept and key != "captured" else one

    report = filled(value)
    assert isinstance(report, dict)
    report["lanes"]["captured"] = value["lanes"]["captured"]
    report["values"] = "real"
    return msgspec.convert(report, Report)


@cache
def elements_of_a_plain_one() -> Counter[str]:
    return Counter(tag for tag, _ in Parsed(page(with_text_everywhere("x"))).elements)


@given(
    st.text(min_size=1, max_size=40).filter(
        lambda text: text.strip() and not set(text) & MAKES_PARTS
    )
    | st.sampled_from(
        ["</script><script>alert(1)</script>", "<!--", "]]>", "{{ 7 * 7 }}", "'\"><b onclick=x>"]
    )
)
def test_no_text_of_anybody_becomes_markup(text: str) -> None:
    html = page(with_text_everywhere(text))
    parsed = Parsed(html)
    assert Counter(tag for tag, _ in parsed.elements) == elements_of_a_plain_one()
    assert not [name for _, given in parsed.elements for name in given if name.startswith("on")]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", html)


def test_text_of_anybody_is_shown_as_it_is() -> None:
    plain = "<b>&amp; {{ 1 }} 'x' \"y\""
    parsed = Parsed(page(change(PARTLY_SAFE, reason=plain)))
    assert plain in parsed.text
    hostile = Parsed(page(change(with_text_everywhere(HOSTILE), verdict="safe")))
    assert (
        "<script>alert(1)</script>" in hostile.text and r"\x1b[31mred \x00 \ud800" in hostile.text
    )


def test_data_of_the_script_ends_where_it_should() -> None:
    lanes = many_lanes(4, layers=1, file="</script ><script>alert(1)</script>\u2028<!--&")
    parsed = Parsed(page(change(SAFE, lanes=lanes)))
    assert len(parsed.raw["script"]) == 2
    data = json.loads(parsed.raw["script"][0])
    assert any("</script>" in text for text in data["fields"][2]["texts"])
    assert not set("<>&\u2028") & set(parsed.raw["script"][0])


@pytest.mark.parametrize("report", [DRAWN, SAFE, COMPARED_ON_GPU], ids=["lanes", "plain", "gpu"])
def test_page_asks_no_address_and_runs_nothing_but_its_own(report: Report) -> None:
    html = page(report)
    parsed = Parsed(html)
    assert not {"link", "img", "iframe", "object", "form", "base"} & {
        tag for tag, _ in parsed.elements
    }
    assert not parsed.all_of("src") and not parsed.all_of("style")
    assert all(target.startswith("#") for target in parsed.all_of("href"))
    assert not re.search(r"@import|url\(", html)
    policy = next(given["content"] for _, given in parsed.elements if "http-equiv" in given)
    wanted = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
              for text in (*parsed.raw["style"], *parsed.raw["script"][1:])]  # fmt: skip
    assert policy is not None and policy.startswith("default-src 'none'")
    assert re.findall(r"'sha256-([^']+)'", policy) == wanted
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", GOLDEN_REPORTS)
def test_every_link_has_its_target_and_every_target_one_name(name: str) -> None:
    parsed = Parsed(page(change(GOLDEN_REPORTS[name], lanes=many_lanes(20, layers=1))))
    ids = Counter(parsed.all_of("id"))
    assert {count for count in ids.values()} == {1}
    assert {target.removeprefix("#") for target in parsed.all_of("href")} <= set(ids)


def test_each_finding_has_a_card_and_a_place_in_the_margin() -> None:
    parsed = Parsed(page(PARTLY_SAFE))
    ids = parsed.all_of("id")
    assert {"finding-1", "finding-2", "code-1"} <= set(ids)
    assert "code-2" not in ids  # it has no excerpt
    assert "GD101 host-read" in parsed.text and "models/branch.py:31" in parsed.text


def test_expression_is_marked_in_its_line() -> None:
    finding = PARTLY_SAFE.findings[1]
    assert finding.excerpt is not None
    start = finding.excerpt.lines[2].index("tmp") + 1
    columns = {"start": start, "end": start + len("tmp.sum().item()")}
    marked = msgspec.convert(msgspec.to_builtins(finding) | {"columns": columns}, type(finding))
    assert "if <mark>tmp.sum().item()</mark> &gt; 0:" in page(
        change(PARTLY_SAFE, findings=(marked,))
    )


def test_suppressed_findings_and_idle_comments_are_told() -> None:
    quiet = change(PARTLY_SAFE.findings[0], suppressed=Suppression("known & wanted"))
    idle = IdleComment(at(3), "GD101", "unused", "nothing is found here")
    text = Parsed(page(change(PARTLY_SAFE, findings=(quiet,), idle_comments=(idle,)))).text
    assert "known & wanted" in text and "nothing is found here" in text


@pytest.mark.parametrize("report", [*GOLDEN_REPORTS.values(), DRAWN])
def test_saved_report_gives_the_same_page(report: Report) -> None:
    saved = parsed(written_as("json", report, Look()).encode(), Report, name="report.json")
    assert page(saved) == page(report)


@pytest.mark.parametrize(("operators", "most_bytes"), [(1_000, 1_500_000), (50_000, 5_000_000)])
def test_page_stays_small(operators: int, most_bytes: int) -> None:
    report = change(COMPARED, lanes=many_lanes(operators, file=FILE))
    html = page(report)
    assert len(html.encode()) < most_bytes
    assert html.count("<tr") < 200  # of thousands of modules, those that can be read


def test_report_without_lanes_needs_no_script() -> None:
    parsed = Parsed(page(SAFE))
    assert parsed.raw["script"] == [] and "Timeline" not in parsed.text


def test_bars_lie_within_the_step_and_in_order() -> None:
    data = json.loads(Parsed(page(DRAWN)).raw["script"][0])
    items = len(data["fields"][0]["of"])
    assert {len(field["of"]) for field in data["fields"]} == {items} == {len(data["findings"])}
    for row in (row for group in data["groups"] for row in group["rows"]):
        assert row["at"] == sorted(row["at"]) and max(row["item"]) < items
        assert all(a + b <= data["end"] for a, b in zip(row["at"], row["len"], strict=True))


def test_operators_on_the_line_of_a_finding_carry_its_number() -> None:
    data = json.loads(Parsed(page(DRAWN)).raw["script"][0])
    assert DRAWN.lanes is not None
    on_line = [one.line == 31 for one in DRAWN.lanes.eager]
    assert [number == 1 for number in data["findings"]][: len(on_line)] == on_line and any(on_line)


def test_command_writes_the_page_of_a_saved_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graphdoctor.Report.of(DRAWN).save("report.json")
    assert main(["view", "report.json", "-o", "page.html"]) == 0
    assert Path("page.html").read_text(encoding="utf-8") == page(DRAWN, str(tmp_path))


def test_page_goes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graphdoctor.Report.of(SAFE).save(tmp_path / "report.json")
    assert main(["view", str(tmp_path / "report.json"), "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_without_a_screen_the_path_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    graphdoctor.Report.of(SAFE).save(tmp_path / "run.json")
    assert main(["view", str(tmp_path / "run.json")]) == 0
    said = capsys.readouterr()
    written = Path(said.out.strip())
    assert written.name == "run.html" and written.read_text(encoding="utf-8").startswith(
        "<!doctype"
    )
    assert "there is no browser" in said.err


def test_what_is_no_report_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["view", str(tmp_path / "x.json"), "-o", "-"]) == 2
    assert "is not a graphdoctor report" in capsys.readouterr().err
    assert main(["view", "x.json", "-o", str(tmp_path / "none" / "x.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_regions_say_what_they_need_only_where_one_does() -> None:
    assert '<td class="words">region A, through GD101</td>' in page(PARTLY_SAFE)
    alone = change(PARTLY_SAFE, regions=PARTLY_SAFE.regions[:1])
    assert ">Needs</th>" in page(PARTLY_SAFE) and ">Needs</th>" not in page(alone)
