"""What an audit found, in the formats that machines and pull requests read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest

from graphdoctor.reporters.formats import names_of, written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import (
    AuditReport,
    FrozenValue,
    OverwrittenOutput,
    StaleTensor,
    UncopiedInput,
)
from graphdoctor.values.locations import Location
from graphdoctor.values.watched import WatchedGraphs
from tests.support.parsed import Parsed

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "sarif-2.1.0.json").read_bytes())
LIBRARY = Location("/env/site-packages/vllm/runner.py", 7)


def line(number: int) -> Location:
    return Location("/repo/serve me.py", number)


def stale(name: str = "policy.weight", replayed_at: Location | None = None) -> StaleTensor:
    return StaleTensor(
        reason="rebound", name=name, shape=(4, 4), dtype="float32", operator="aten::addmm",
        is_written=False, used_at=line(3), captured_at=line(2), replayed_at=replayed_at or line(9),
        replay=2,
    )  # fmt: skip


OUTPUT = OverwrittenOutput(
    name="losses", shape=(), dtype="float32", operator="", kept_at=line(12), read_at=None,
    captured_at=line(2), replayed_at=line(11), replay=4,
)  # fmt: skip

NUMBER = FrozenValue(
    name='SGD.param_groups[0]["lr"]', captured="0.1", now="0.05", operator="aten::add_",
    used_at=line(3), captured_at=line(2), replayed_at=line(11), replay=4, changed_at=line(14),
)  # fmt: skip

INPUT = UncopiedInput(
    name="self.tokens", argument="tokens", shape=(4,), dtype="int64", operator="aten::embedding",
    used_at=line(3), captured_at=line(2), passed_at=line(16), replayed_at=line(11), replay=1,
)  # fmt: skip


def report(
    *stale_tensors: StaleTensor,
    outputs: tuple[OverwrittenOutput, ...] = (),
    numbers: tuple[FrozenValue, ...] = (),
    inputs: tuple[UncopiedInput, ...] = (),
) -> AuditReport:
    return AuditReport(
        schema_version=1, tool_version="1.0", command=("serve me.py",), device="cuda",
        ending="finished", exit_code=0, audited_graphs=(WatchedGraphs(line(2), 1, 0, 1, 4, 0.5),),
        stale_tensors=stale_tensors, overwritten_outputs=outputs,
        frozen_values=numbers, uncopied_inputs=inputs,
    )  # fmt: skip


def rendered(name: str, audited: AuditReport) -> str:
    return written_as(name, audited, Look(base="/repo"))


def test_a_kernel_uses_memory_if_nobody_knows_whether_it_writes() -> None:
    kernel = msgspec.structs.replace(stale(), operator="scale", is_written=None, used_at=None)
    page = rendered("terminal", report(kernel))
    assert "scale uses the captured address (an unknown line)" in page
    assert (
        msgspec.json.decode(rendered("json", report(kernel)))["stale_tensors"][0]["is_written"]
        is None
    )


def test_sarif_is_valid_and_has_a_rule_and_a_line_for_each_fault() -> None:
    document = json.loads(
        rendered("sarif", report(stale(), outputs=(OUTPUT,), numbers=(NUMBER,), inputs=(INPUT,)))
    )
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    places = [each["locations"][0]["physicalLocation"] for each in run["results"]]
    assert [rules[each["ruleIndex"]] for each in run["results"]] == [
        "stale-tensor-rebound", "overwritten-output", "frozen-value", "uncopied-input",
    ]  # fmt: skip
    assert [(p["artifactLocation"]["uri"], p["region"]["startLine"]) for p in places] == [
        ("serve%20me.py", 9), ("serve%20me.py", 12), ("serve%20me.py", 14),
        ("serve%20me.py", 16),
    ]  # fmt: skip


def test_an_alert_belongs_to_the_program_where_a_library_replays() -> None:
    (run,) = json.loads(rendered("sarif", report(stale(replayed_at=LIBRARY))))["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 2
    uris = [
        each["physicalLocation"]["artifactLocation"]["uri"] for each in result["relatedLocations"]
    ]
    assert uris[0] == "file:///env/site-packages/vllm/runner.py"


def test_an_alert_belongs_to_the_line_that_replaced_the_memory() -> None:
    changed = msgspec.structs.replace(stale(), changed_at=line(5))
    (run,) = json.loads(rendered("sarif", report(changed)))["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 5
    assert "Changed" in rendered("terminal", report(changed))


def test_fingerprints_of_equal_faults_differ_and_outlast_moved_lines() -> None:
    def prints(*tensors: StaleTensor) -> list[str]:
        (run,) = json.loads(rendered("sarif", report(*tensors)))["runs"]
        return [each["partialFingerprints"]["primaryLocationLineHash"] for each in run["results"]]

    first, second = prints(stale(), stale(replayed_at=line(30)))
    assert first != second
    assert prints(stale(replayed_at=line(40))) == [first]


def test_markdown_and_annotations_name_the_fault_and_its_lines() -> None:
    found = report(stale(), outputs=(OUTPUT,), numbers=(NUMBER,), inputs=(INPUT,))
    comment, commands = rendered("markdown", found), rendered("github", found)
    assert comment.startswith("<!-- graphdoctor audit -->\n### graphdoctor audit failed: ")
    assert "- Replayed: `serve me.py:9, replay 2`" in comment
    assert "- Kept: `serve me.py:12`" in comment
    assert "is 0.05 now, but replays use 0.1" in comment
    assert "The call ignores" in comment and "- Passed: `serve me.py:16`" in comment
    first, second, *_, summary = commands.splitlines()
    assert first.startswith(
        "::error file=serve me.py,line=9,endLine=9,title=stale-tensor-rebound::"
    )
    assert second.startswith("::error file=serve me.py,line=12,endLine=12,title=overwritten-output")
    assert summary.endswith(
        "1 stale tensor, 1 overwritten output, 1 frozen value, 1 uncopied input."
    )
    assert " passed: " in rendered("markdown", report())


def test_gitlab_has_an_issue_with_a_line_for_each_fault() -> None:
    issues = json.loads(
        rendered("gitlab", report(stale(), stale(replayed_at=line(30)), outputs=(OUTPUT,)))
    )
    places = [each["location"] for each in issues]
    assert [(p["path"], p["positions"]["begin"]["line"]) for p in places] == [
        ("serve me.py", 9), ("serve me.py", 30), ("serve me.py", 12),
    ]  # fmt: skip
    assert len({each["fingerprint"] for each in issues}) == 3
    assert "Replayed: serve me.py:9, replay 2." in issues[0]["description"]
    assert json.loads(rendered("gitlab", report())) == []


def test_junit_has_a_failure_for_each_fault_and_else_a_case_that_passes() -> None:
    root = ET.fromstring(rendered("junit", report(stale(), numbers=(NUMBER,))))
    assert (root.get("tests"), root.get("failures")) == ("2", "2")
    case = root.findall(".//testcase")[1]
    assert case.get("name") == "frozen-value serve me.py:14" and case.get("line") == "14"
    failure = case.find("failure")
    assert failure is not None and "is 0.05 now" in failure.get("message", "")
    root = ET.fromstring(rendered("junit", report()))
    assert (root.get("tests"), root.get("failures")) == ("1", "0")


def test_html_has_an_article_for_each_fault_and_a_row_for_each_captured_line() -> None:
    shown = Parsed(rendered("html", report(stale(), inputs=(INPUT,))))
    ids = set(shown.all_of("id"))
    assert {"fault-1", "fault-2"} <= ids
    assert {target[1:] for target in shown.all_of("href")} <= ids
    assert "FAILED" in shown.text and "serve me.py:9, replay 2" in shown.text
    assert "PASSED" in Parsed(rendered("html", report())).text


@pytest.mark.parametrize("name", sorted({*names_of("AuditReport")} - {"json"}))
def test_names_of_the_program_are_shown_and_never_obeyed(name: str) -> None:
    text = rendered(name, report(stale("x\n::error::boo\x1b[31m<script>")))
    assert "\x1b" not in text and "\n::error::boo" not in text
    if name in ("markdown", "html", "junit"):
        assert "<script>" not in text
