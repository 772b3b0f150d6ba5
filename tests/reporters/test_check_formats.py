"""The formats of a check: valid for what receives them, whatever text a model brings along."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from graphdoctor.reporters.check import github, markdown, sarif
from graphdoctor.reporters.formats import names_of, written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.captures import ON_FRESH_INPUTS, CaptureOutcome, Verification
from graphdoctor.values.check import Check, Fault
from graphdoctor.values.finding import Edit
from graphdoctor.values.locations import Columns, Location
from tests.support.checking import HOSTILE, checked, finding, hostile_check, report

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "sarif-2.1.0.json").read_bytes())
MULTITOOL = os.environ.get("GRAPHDOCTOR_SARIF_MULTITOOL") or shutil.which("Sarif.Multitool")


def rendered(name: str, check: Check | None = None) -> str:
    return written_as(name, check or hostile_check(), Look())


def many(count: int) -> Check:
    """So many new findings, each on a line of its own."""
    found = [
        finding(10 * number, source=f"x{number}.item()", fix=f"Read x{number} after the replay.")
        for number in range(1, count + 1)
    ]
    return checked({"net": report(*found)})


@pytest.mark.parametrize("name", names_of("Check"))
def test_hostile_text_is_never_obeyed(name: str) -> None:
    """No control character but line breaks, no mark that turns text around, nothing unpaired."""
    text = rendered(name)
    text.encode("utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    if name != "json":  # which says everything as it is
        assert not re.search(r"[\u202a-\u202e\u2028\ufffe]", text)


@pytest.mark.parametrize("name", names_of("Check"))
def test_hostile_text_makes_no_line_of_its_own(name: str) -> None:
    lines = [line.strip() for line in rendered(name).splitlines()]
    assert not any(line.startswith(("::error title=x", "##[error]")) for line in lines)


@pytest.mark.parametrize("name", names_of("Check"))
def test_clean_check_of_no_target_is_a_document_too(name: str) -> None:
    rendered(name, checked({}))


def test_sarif_is_valid_by_the_schema() -> None:
    for check in (hostile_check(), many(3), checked({})):
        jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(rendered("sarif", check)))


def test_schema_would_notice_a_wrong_level() -> None:
    document = json.loads(rendered("sarif", many(1)))
    document["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.skipif(MULTITOOL is None, reason="needs Sarif.Multitool, see CONTRIBUTING.md")
@pytest.mark.parametrize("check", [hostile_check(), many(3)], ids=["hostile", "plain"])
def test_sarif_is_valid_for_github_s_own_rules(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "check.sarif"
    path.write_text(rendered("sarif", check), encoding="utf-8")
    assert MULTITOOL is not None
    said = subprocess.run(
        [
            *(MULTITOOL, "validate", str(path), "--rule-kind", "Sarif;Ghas"),
            *("--level", "Error", "--output", str(tmp_path / "said.sarif")),
        ],
        env={**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "Analysis completed successfully" in said
    assert ": error " not in said  # its exit code is 0 even then


def test_sarif_has_what_github_needs() -> None:
    (run,) = json.loads(rendered("sarif", many(2)))["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert {"id", "shortDescription", "fullDescription", "help"} <= set(rule)
    hashes = set()
    for result in run["results"]:
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "models/net.py"
        assert {"startLine", "startColumn", "endLine", "endColumn"} <= set(place["region"])
        hashes.add(result["partialFingerprints"]["primaryLocationLineHash"])
    assert len(hashes) == 2


def test_sarif_has_the_edits_of_a_finding_as_a_fix() -> None:
    edit = Edit("net.py", 10, 5, 10, 13, "x1")
    check = checked({"net": report(replace(finding(10, source="y = x1.item()"), edits=(edit,)))})
    document = json.loads(rendered("sarif", check))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    (result,) = document["runs"][0]["results"]
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"]["uri"].endswith("net.py")
    (replacement,) = change["replacements"]
    assert replacement["deletedRegion"] == {
        "startLine": 10,
        "startColumn": 5,
        "endLine": 10,
        "endColumn": 13,
    }
    assert replacement["insertedContent"] == {"text": "x1"}


def test_sarif_names_the_page_that_the_installed_package_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def driver(*urls: str) -> Any:
        installed = Message()
        for url in urls:
            installed["Project-URL"] = url
        monkeypatch.setattr(sarif, "metadata", lambda name: installed)
        document = json.loads(rendered("sarif"))
        jsonschema.Draft202012Validator(SCHEMA).validate(document)
        return document["runs"][0]["tool"]["driver"]

    assert "informationUri" not in driver()
    assert "informationUri" not in driver("Changelog, https://example.org/changes")
    page = "https://example.org/graphdoctor"
    found = driver("Documentation, https://example.org/docs", f"Homepage, {page}")
    assert found["informationUri"] == page


def test_sarif_paths_are_percent_encoded_and_start_at_the_repository() -> None:
    from msgspec.structs import replace

    found = finding(file="mödels/my net.py")
    check = replace(checked({"net": report(found)}), prefix="packages/a b/")
    (run,) = json.loads(rendered("sarif", check))["runs"]
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", uri)
    assert unquote(uri) == "packages/a b/mödels/my net.py"


def test_projects_of_one_repository_are_kept_apart() -> None:
    """GitHub replaces an analysis by the next of the same id, and the action a comment by its first line."""
    from msgspec.structs import replace

    root, other = many(1), replace(many(1), prefix="packages/a b/")
    ids = [
        json.loads(rendered("sarif", one))["runs"][0]["automationDetails"] for one in (root, other)
    ]
    assert ids == [{"id": "graphdoctor/check/"}, {"id": "graphdoctor/check/packages/a%20b/"}]
    first_lines = [rendered("markdown", one).splitlines()[0] for one in (root, other)]
    assert first_lines == ["<!-- graphdoctor -->", "<!-- graphdoctor packages/a%20b -->"]
    assert "graphdoctor failed in packages/a b: " in rendered("markdown", other)
    closing = rendered("markdown", replace(many(1), prefix="x--><b>/")).splitlines()[0]
    assert closing == "<!-- graphdoctor x--%3E%3Cb%3E -->"


def test_sarif_marks_known_findings_as_accepted() -> None:
    from tests.check.test_gate import accepting

    check = checked({"net": report(finding())}, accepting(finding()))
    (run,) = json.loads(rendered("sarif", check))["runs"]
    assert run["results"][0]["suppressions"][0]["status"] == "accepted"


def test_github_shows_the_worst_within_its_caps() -> None:
    found = [finding(n, source=f"x{n}.item()", certainty="unknown") for n in range(1, 31)]
    worst = finding(99, source="worst.item()")
    lines = rendered("github", checked({"net": report(*found, worst)})).splitlines()
    kinds = [line.split(" ")[0] for line in lines if line.startswith("::")]
    assert kinds.count("::warning") == 10
    assert "line=99," in next(line for line in lines if line.startswith("::error"))
    assert lines[-1].startswith("graphdoctor: 2") and lines[-1].endswith("in the step summary")


def unescaped(text: str) -> str:
    """As the runner reads a property: the opposite of its own escaping."""
    for code, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, char)
    return text


@given(st.text())
def test_github_property_is_read_back_and_ends_nothing(text: str) -> None:
    written = github._property(text)
    assert not re.search(r"[:,\r\n]", written)
    assert "%" not in text or "%" in unescaped(written)


def test_gitlab_issues_are_complete_and_their_fingerprints_unique() -> None:
    issues = json.loads(rendered("gitlab"))
    for issue in issues:
        assert set(issue) == {"check_name", "description", "severity", "fingerprint", "location"}
        assert issue["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert issue["location"]["path"] and issue["location"]["positions"]["begin"]["line"] >= 1
    prints = [issue["fingerprint"] for issue in issues]
    assert len(prints) == len(set(prints))


def test_fingerprints_do_not_change_when_lines_move() -> None:
    def prints(line: int) -> list[str]:
        check = checked({"net": report(finding(line))})
        return [issue["fingerprint"] for issue in json.loads(rendered("gitlab", check))]

    assert prints(3) == prints(300)


def test_junit_counts_what_it_has() -> None:
    root = ET.fromstring(rendered("junit"))
    for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(root.get(total, "")) == len(root.findall(f".//{tag}"))
    assert int(root.get("tests", "")) == len(root.findall(".//testcase"))
    assert root.findall(".//failure") and root.findall(".//error")


def test_junit_names_are_unique_and_no_time_is_made_up() -> None:
    twins = [finding(7, source=f"x{number}.item()") for number in range(3)]
    for check in (checked({"net": report(*twins)}), hostile_check()):
        root = ET.fromstring(rendered("junit", check))
        for suite in root:
            names = [case.get("name") for case in suite]
            assert names and len(names) == len(set(names))
        assert not root.findall(".//*[@time]")


def test_junit_has_the_time_of_each_analysis_and_json_the_same_bytes_without() -> None:
    from msgspec.structs import replace

    quick = checked({"net": report(finding()), "other": report()})
    times = (12.3456, None)
    targets = [replace(one, analysis_s=s) for one, s in zip(quick.targets, times, strict=True)]
    timed = replace(quick, targets=tuple(targets))
    root = ET.fromstring(rendered("junit", timed))
    assert [suite.get("time") for suite in root] == ["12.346", None]
    assert root.get("time") == "12.346" and not root.findall(".//testcase[@time]")
    assert rendered("json", timed) == rendered("json", quick)


def test_json_is_read_again() -> None:
    check = many(2)
    assert parsed(rendered("json", check).encode(), Check, name="x") == check


@pytest.mark.parametrize("count", [1, 400])
def test_markdown_fits_into_a_comment(count: int) -> None:
    text = rendered("markdown", many(count))
    assert text.startswith("<!-- graphdoctor -->\n")
    assert len(text) < 65_000
    assert ("do not fit" in text) == (count > 1)


def test_the_code_of_a_fix_is_shown_as_it_is_pasted() -> None:
    lines = ("opt = Adam(", "    p, capturable=True)")
    check = checked({"one": report(finding(fix="Pass `capturable=True`:", fix_code=lines))})
    code = "```python\nopt = Adam(\n    p, capturable=True)\n```"
    assert rendered("markdown", check).count(code) == 1
    page = rendered("full", check)
    start = page.index("Pass `capturable=True`:\n") - page.rindex("\n", 0, page.index("Pass `c"))
    margin = " " * (start - 1)
    assert f"{margin}opt = Adam(\n{margin}    p, capturable=True)\n" in page


def test_markdown_has_no_html_and_no_mention_of_the_model_s() -> None:
    text = re.sub(r"(?s)(`+)(?!`).*?(?<!`)\1(?!`)", "", rendered("markdown"))  # without code
    assert "<script" not in text and "@nobody" not in text


@given(st.text(alphabet="`a \n", max_size=20))
def test_markdown_code_ends_only_where_it_should(text: str) -> None:
    written = markdown.code(text)
    fence = re.match("`+", written)
    assert fence is not None
    inner = written[len(fence.group()) : -len(fence.group())]
    assert fence.group() not in re.findall("`+", inner)


def test_concise_has_a_line_for_each_new_finding() -> None:
    lines = rendered("concise", many(3)).splitlines()
    assert [line.split(": ")[0] for line in lines[:3]] == [
        f"models/net.py:{line}" for line in (10, 20, 30)
    ]
    assert lines[-1] == "failed: 3 new findings in 1 target"


def test_full_page_fits_80_columns_and_has_what_is_new_first() -> None:
    page = rendered("full", many(3))
    assert max(map(len, page.splitlines())) <= 80
    assert page.index("New findings") < page.index("Targets")


@pytest.mark.parametrize("name", ["markdown", "full", "html"])
def test_eight_lines_of_one_fix_are_one_block(name: str) -> None:
    found = [finding(10 * number, source=f"x{number}.item()") for number in range(1, 9)]
    page = rendered(name, checked({"net": report(*found)}))
    text = html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\\", "") if name != "full" else page
    assert " ".join(text.split()).count(" ".join(found[0].fix.split())) == 1
    assert all(f"models/net.py:{10 * number}" in text for number in range(1, 9))
    assert "models/net.py:90" not in text


@pytest.mark.parametrize("name", ["sarif", "gitlab", "json"])
def test_formats_for_machines_have_an_entry_for_each_line_of_one_fix(name: str) -> None:
    found = [finding(10 * number, source=f"x{number}.item()") for number in range(1, 9)]
    document = json.loads(rendered(name, checked({"net": report(*found)})))
    entries = {
        "sarif": lambda: document["runs"][0]["results"],
        "gitlab": lambda: document,
        "json": lambda: document["targets"][0]["findings"],
    }[name]()
    assert len(entries) == 8


def test_full_page_says_which_inputs_a_safe_verdict_was_not_proved_for() -> None:
    def proved(inputs: str) -> CaptureOutcome:
        verification = Verification("verified", 4, 2, "bitwise", inputs=inputs)
        return CaptureOutcome("whole step", "captured", verification=verification)

    fixed, fresh = proved("on the given inputs only"), proved(ON_FRESH_INPUTS)
    page = rendered("full", checked({"fixed": report(captures=(fixed,))}))
    assert "proved on the given inputs only" in page
    assert "proved" not in rendered("full", checked({"fresh": report(captures=(fresh,))}))


@pytest.mark.parametrize("width", [60, 72, 100])
def test_full_page_fits_narrow_and_wide_terminals(width: int) -> None:
    names = [f"models/a/rather/deep/folder/of/networks/{number}" for number in range(3)]
    check = checked({name: report(finding(certainty="confirmed")) for name in names})
    page = written_as("full", check, Look(width=width, show_all=True))
    longer = [line for line in page.splitlines() if len(line) > width]
    assert [line for line in longer if len(line.split()) > 2] == []
    assert "New findings " in page and f"{names[0]}, {names[1]}" in " ".join(page.split())


def test_one_finding_of_two_targets_is_told_once() -> None:
    check = checked({"net": report(finding()), "other": report(finding())})
    assert len(json.loads(rendered("gitlab", check))) == 1
    assert "net, other" in rendered("concise", check)


def test_hostile_text_is_hostile() -> None:
    assert not HOSTILE.isprintable()


anything = st.text(st.characters(), max_size=30)  # lone surrogates too


@given(anything, anything, anything)
def test_any_text_gives_documents_that_can_be_read(name: str, path: str, code: str) -> None:
    found = finding(file=f"models/{path}.py", source=code, name=name, message=code, fix=name)
    check = checked({f"n{name}": report(found), "broken": Fault("failed", 3, name, code)})
    texts = {one: rendered(one, check) for one in names_of("Check")}
    assert all(text.encode("utf-8") for text in texts.values())
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(texts["sarif"]))
    assert len(json.loads(texts["gitlab"])) == 2
    assert len(ET.fromstring(texts["junit"]).findall(".//testcase")) == 2
    assert len(texts["github"].splitlines()) == 3  # two annotations and the line that sums up
    assert parsed(texts["json"].encode(), Check, name="x").exit_code == 3


def test_formats_point_to_the_expression() -> None:
    source = "\tif ä and x.item() > 0:"
    found = finding(source=source, columns=Columns(11, 19))
    check = checked({"net": report(found)})
    lines = rendered("full", check).splitlines()
    at = next(number for number, line in enumerate(lines) if "x.item() > 0" in line)
    start = lines[at].index("x.item()")
    assert lines[at + 1][start:] == "^^^^^^^^" and not lines[at + 1][:start].strip("| ")
    (run,) = json.loads(rendered("sarif", check))["runs"]
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert (region["startColumn"], region["endColumn"]) == (11, 19)
    assert region["snippet"]["text"] == "x.item()"
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(rendered("sarif", check)))
    assert "line=3,endLine=3,col=11,endColumn=19," in rendered("github", check)


def test_columns_of_a_library_s_line_are_not_put_on_the_project_s() -> None:
    place = Location("/usr/lib/python3/dist-packages/lib.py", 3)
    own = Location("models/net.py", 9)
    found = finding(columns=Columns(4, 6), location=place, stack=(own,))
    text = rendered("github", checked({"net": report(found)}))
    assert "line=9" in text and "col=" not in text


def test_every_line_of_text_says_where_a_finding_in_a_library_really_is() -> None:
    place, own = Location("/usr/lib/python3/dist-packages/lib.py", 3), Location("models/net.py", 9)
    called = checked({"net": report(finding(location=place, stack=(own,)))})
    elsewhere = checked({"net": report(finding(location=place, stack=()))})
    for name in ("concise", "github"):
        assert "lib.py:3, called from here" in rendered(name, called)
        # A target is described in the project, and no line of it leads to the finding.
        said = rendered(name, elsewhere)
        assert "lib.py:3" in said and "called from here" not in said


def test_carets_are_under_all_of_a_line_too() -> None:
    source = "    x.item()"
    check = checked({"net": report(finding(source=source, columns=Columns(5, 13)))})
    assert rendered("full", check).count("^") == 8
