"""The words and lines that every format shows of what an audit found."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from graphdoctor.reporters.check.github import MOST_OF_A_KIND, command, file_and_line
from graphdoctor.reporters.check.gitlab import place_of
from graphdoctor.reporters.check.junit import add_case, add_problem, counted, document_of
from graphdoctor.reporters.check.markdown import code, escaped, fitted
from graphdoctor.reporters.check.sarif import MOST_RESULTS, one_run, uri
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import parts
from graphdoctor.values.audited import (
    AuditReport,
    FrozenValue,
    OverwrittenOutput,
    StaleTensor,
    UncopiedInput,
    WrongReplay,
)
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import Location, own_line, path_text, place_text

_HAPPENED = {
    "freed": "was freed after the capture",
    "moved": "moved to another address after the capture",
    "rebound": "is other memory now than at capture",
}
_HELP = {
    "freed": "Keep a reference to the tensor while the graph exists, or capture again.",
    "moved": "Do not resize the tensor while the graph exists, or capture again.",
    "rebound": "Copy new values in place with `copy_()`, or capture again.",
}
_USE = {True: "writes", False: "reads", None: "uses"}
OVERWRITTEN = "overwritten-output"
FROZEN = "frozen-value"
WRONG = "wrong-replay"
UNCOPIED = "uncopied-input"
RULES = {
    **{f"stale-tensor-{reason}": f"A captured tensor {what}" for reason, what in _HAPPENED.items()},
    OVERWRITTEN: "An output that the program keeps was overwritten by a later replay",
    FROZEN: "A number that the program changed is frozen at capture",
    WRONG: "A replay's result differs from that of its operators, run eagerly",
    UNCOPIED: "A new input was not copied into the captured one",
}
WHY = (
    "A replay uses the addresses and numbers of its capture, reads and writes whatever is there, and"
    " raises no error."
)


class Line(NamedTuple):
    """What happened in a line of the program: a label, words before the line, and the line."""

    label: str
    location: Location | None
    words: str = ""
    replay: int = 0

    def text(self, base: str) -> str:
        place = "an unknown line" if self.location is None else place_text(self.location, base)
        if self.replay:
            place = f"{place}, replay {self.replay}"
        return f"{self.words} ({place})" if self.words else place


class AuditFault(NamedTuple):
    """One thing that was found. `rule` is one of RULES; `lines` are in order of reading."""

    rule: str
    message: str
    lines: tuple[Line, ...]
    help: str

    @property
    def location(self) -> Location | None:
        """Where an annotation belongs: the first line, if possible of the program's own files."""
        places = [line.location for line in self.lines]
        return own_line(places) or next((place for place in places if place is not None), None)


def faults_of(report: AuditReport) -> tuple[AuditFault, ...]:
    """All that was found, stale tensors first."""
    return (
        *map(_of_stale, report.stale_tensors),
        *map(_of_output, report.overwritten_outputs),
        *map(_of_number, report.frozen_values),
        *map(_of_replay, report.wrong_replays),
        *map(_of_input, report.uncopied_inputs),
    )


def fingerprints(faults: Sequence[AuditFault], base: str) -> Iterator[str]:
    """One for each fault, which stays the same if only lines move. Faults of the same words in a file are numbered."""
    seen: Counter[str] = Counter()
    for fault in faults:
        file = path_text(fault.location.file, base) if fault.location is not None else ""
        words = "\0".join((fault.rule, file, fault.message))
        digest = hashlib.sha256(words.encode("utf-8", "backslashreplace")).hexdigest()[:32]
        seen[digest] += 1
        yield f"{digest}:{seen[digest]}"


def headline(report: AuditReport) -> str:
    """ "1 capture, 2 replays on the emulated device: 1 stale tensor, no overwritten output found, ..." """
    graphs = f"{count_text(report.captures, 'capture')}, {count_text(report.replays, 'replay')}"
    counts = [
        (len(report.stale_tensors), "stale tensor"),
        (len(report.overwritten_outputs), "overwritten output"),
        (len(report.frozen_values), "frozen value"),
        (len(report.uncopied_inputs), "uncopied input"),
    ]
    if report.verified is not None and report.verified.every:
        counts.append((len(report.wrong_replays), "wrong replay"))
    found = ", ".join(
        count_text(count, what) if count else f"no {what} found" for count, what in counts
    )
    return f"{graphs} on the {report.device} device: {found}."


def verified_text(report: AuditReport) -> str:
    """What was compared with eager runs, in a paragraph; "" without `--verify` and `--debug-eager`."""
    verified = report.verified
    if verified is None:
        return ""
    was = "compared with" if verified.every else "replaced by"
    replays = (
        f"{count_text(verified.replays, 'replay')} {was} eager runs of the captured operators."
    )
    not_compared = (
        (verified.random, "random operator", ""),
        (verified.unseen, "operator", " behind kernels that torch does not dispatch"),
        (verified.gone, "replay", " whose inputs are gone"),
        (verified.failed, "replay", " that eager could not run"),
        (verified.unexplained, "replay", " that kernels may decide which torch does not dispatch"),
    )
    rest = ", ".join(count_text(n, what) + which for n, what, which in not_compared if n)
    return f"{replays} Not compared: {rest}." if rest else replays


def _of_stale(each: StaleTensor) -> AuditFault:
    shape = f"{each.dtype}{list(each.shape)}"
    name = f"`{each.name}` ({shape})" if each.name else f"A tensor {shape}"
    use = _USE[each.is_written]
    return AuditFault(
        f"stale-tensor-{each.reason}",
        f"{name} {_HAPPENED[each.reason]}.",
        (
            *((Line("Changed", each.changed_at),) if each.changed_at is not None else ()),
            Line("Replayed", each.replayed_at, replay=each.replay),
            Line("Captured", each.captured_at),
            Line("Used", each.used_at, f"{each.operator} {use} the captured address"),
        ),
        _HELP[each.reason],
    )


def _of_output(each: OverwrittenOutput) -> AuditFault:
    def lines() -> Iterator[Line]:
        yield Line("Kept", each.kept_at)
        if each.operator:
            yield Line("Read", each.read_at, each.operator)
        yield Line("Replayed", each.replayed_at, replay=each.replay)
        yield Line("Captured", each.captured_at)

    shape = f"{each.dtype}{list(each.shape)}"
    holds = f"`{each.name}` holds an output" if each.name else "An output"
    return AuditFault(
        OVERWRITTEN,
        f"{holds} ({shape}) that a later replay overwrote.",
        tuple(lines()),
        "Keep a copy: `clone()` the output after its replay.",
    )


def _of_number(each: FrozenValue) -> AuditFault:
    return AuditFault(
        FROZEN,
        f"`{each.name}` is {each.now} now, but replays use {each.captured}, which is frozen at capture.",
        (
            *((Line("Changed", each.changed_at),) if each.changed_at is not None else ()),
            Line("Replayed", each.replayed_at, replay=each.replay),
            Line("Captured", each.captured_at),
            Line("Used", each.used_at, f"{each.operator} gets the captured number"),
        ),
        "Keep the number in a GPU tensor and change it in place with `fill_()`, or capture again.",
    )


def _of_replay(each: WrongReplay) -> AuditFault:
    how_far = each.detail or f"by up to {each.max_abs:.3g}"
    changes = [
        f"`{one.name or 'an input'}` ({one.text} at capture) is {one.now} now."
        for one in each.inputs
        if one.now
    ]
    if not each.frozen and not changes:
        changes.append("The inputs are those of the capture.")
    if not each.repeats:
        changes.append("Eager itself differs between two runs.")
    return AuditFault(
        WRONG,
        " ".join((f"The replay of {each.operator} differs from eager ({how_far}).", *changes)),
        (
            Line("Operator", each.used_at),
            Line("Replayed", each.replayed_at, replay=each.replay),
            Line("Captured", each.captured_at),
        ),
        "Copy new values in place with `copy_()`, keep numbers in tensors, or capture again."
        if each.frozen
        else "Run with `--debug-eager`: a fault that stays is a fault of the data.",
    )


def _of_input(each: UncopiedInput) -> AuditFault:
    shape = f"{each.dtype}{list(each.shape)}"
    new = (
        f"The call ignores `{each.argument}` ({shape}), a new tensor, and replays read `{each.name}`"
        if each.argument
        else f"`{each.name}` ({shape}) is a new tensor, but replays read the captured one"
    )
    places = (("Passed", each.passed_at), ("Changed", each.changed_at))
    return AuditFault(
        UNCOPIED,
        f"{new}, into which nothing was copied.",
        (
            *(Line(label, place) for label, place in places if place is not None),
            Line("Replayed", each.replayed_at, replay=each.replay),
            Line("Captured", each.captured_at),
            Line("Used", each.used_at, f"{each.operator} reads the captured tensor"),
        ),
        "Copy the new tensor into the captured one with `copy_()` before the replay.",
    )


def terminal(report: AuditReport, look: Look) -> str:
    """The page. Text from the program can neither color nor move anything in it."""
    page = Page(look)
    page.line((HORIZONTAL * look.width, "dim"))
    page.line(
        ("graphdoctor audit", "bold"),
        (f"  {path_text(' '.join(report.command), look.base)}", "dim"),
    )
    page.paragraph(headline(report))
    if text := verified_text(report):
        page.paragraph(text)
    for fault in faults_of(report):
        page.blank()
        page.hanging("  ", fault.message, style="red")
        for line in fault.lines:
            page.labelled(f"  {line.label}", line.text(look.base))
        page.labelled("  Help", fault.help)
    return page.render()


def github(report: AuditReport, look: Look) -> str:
    """Workflow commands, as many as GitHub shows of a step."""
    faults = faults_of(report)
    lines = [_annotation(fault, look.base) for fault in faults[:MOST_OF_A_KIND]]
    lines.append(f"graphdoctor audit: {headline(report)}")
    return "".join(f"{line}\n" for line in lines)


def _annotation(fault: AuditFault, base: str) -> str:
    place = fault.location
    where = file_and_line(path_text(place.file, base), place.line) if place is not None else ""
    lines = (f"{line.label}: {line.text(base)}" for line in fault.lines)
    return command(
        "error", fault.rule, "\n".join((fault.message, *lines, f"Help: {fault.help}")), where
    )


def gitlab(report: AuditReport, look: Look) -> str:
    """An array of issues; the fingerprint of each occurs once."""
    faults = faults_of(report)
    issues = []
    for fault, fingerprint in zip(faults, fingerprints(faults, look.base), strict=True):
        lines = (f"{line.label}: {line.text(look.base)}." for line in fault.lines)
        place = fault.location
        issues.append(
            {
                "check_name": fault.rule,
                "description": " ".join((visible(fault.message), *lines, fault.help)),
                "severity": "major",
                "fingerprint": fingerprint,
                "location": place_of(path_text(place.file, look.base), place.line)
                if place is not None
                else place_of("", 1),
            }
        )
    return json.dumps(issues, indent=2) + "\n"


_CLASS = "graphdoctor.audit"


def junit(report: AuditReport, look: Look) -> str:
    """One document; no character in it is one that XML forbids."""
    root = ET.Element("testsuites", name="graphdoctor")
    suite = ET.SubElement(root, "testsuite", name="graphdoctor audit")
    for fault in faults_of(report):
        place = fault.location
        where = place_text(place, look.base) if place is not None else "an unknown line"
        case = add_case(suite, _CLASS, f"{fault.rule} {where}")
        if place is not None:
            case.set("file", path_text(place.file, look.base))
            case.set("line", str(place.line))
        lines = [f"{line.label}: {line.text(look.base)}" for line in fault.lines]
        add_problem(case, "failure", fault.message, [*lines, f"Help: {fault.help}"])
    if not len(suite):
        case = add_case(suite, _CLASS, "captured graphs")
        ET.SubElement(case, "system-out").text = visible(headline(report))
    counted(suite)
    return document_of(root)


MARKER = "<!-- graphdoctor audit -->"


def markdown(report: AuditReport, look: Look) -> str:
    """The comment; faults that do not fit are counted."""
    word = "failed" if faults_of(report) else "passed"
    head = f"{MARKER}\n### graphdoctor audit {word}: {escaped(headline(report))}"
    return fitted(head, (_fault(fault, look.base) for fault in faults_of(report)))


def _fault(fault: AuditFault, base: str) -> str:
    lines = (f"- {line.label}: {code(line.text(base))}" for line in fault.lines)
    return "\n".join(
        (f"**{fault.rule}**: {escaped(fault.message)}", "", *lines, f"- Help: {fault.help}")
    )


def html(report: AuditReport, look: Look) -> str:
    """The page, which needs no network and runs no script."""
    return document(
        "audit.html",
        report=report,
        command=path_text(" ".join(report.command), look.base),
        headline=headline(report),
        verified=verified_text(report),
        faults=[
            (fault, [(line.label, line.text(look.base)) for line in fault.lines])
            for fault in faults_of(report)
        ],
        graphs=[
            (place_text(each.location, look.base) if each.location is not None else "", each)
            for each in report.audited_graphs
        ],
        parts=parts,
    )


def sarif(report: AuditReport, look: Look) -> str:
    """One run; paths are relative to the folder that the audit was started in."""
    faults = faults_of(report)[:MOST_RESULTS]
    return one_run(
        version=report.tool_version,
        identity="graphdoctor/audit/",
        rules=[_sarif_rule(rule) for rule in RULES],
        invocation={
            "executionSuccessful": report.ending == "finished",
            "exitCode": report.exit_code,
        },
        results=[
            _sarif_result(fault, fingerprint, look.base)
            for fault, fingerprint in zip(faults, fingerprints(faults, look.base), strict=True)
        ],
    )


def _sarif_rule(rule: str) -> dict[str, Any]:
    return {
        "id": rule,
        "name": "".join(part.capitalize() for part in rule.split("-")),
        "shortDescription": {"text": f"{RULES[rule]}."},
        "fullDescription": {"text": WHY},
        "defaultConfiguration": {"level": "error"},
        "properties": {
            "precision": "high",
            "problem.severity": "error",
            "tags": ["cuda-graphs"],
        },
    }


def _sarif_result(fault: AuditFault, fingerprint: str, base: str) -> dict[str, Any]:
    place = fault.location or Location("pyproject.toml", 1)
    return {
        "ruleId": fault.rule,
        "ruleIndex": list(RULES).index(fault.rule),
        "level": "error",
        "message": {"text": f"{visible(fault.message)} {fault.help}"},
        "locations": [_sarif_location(place, base)],
        "relatedLocations": [
            _sarif_location(line.location, base)
            | {"message": {"text": visible(f"{line.label}: {line.text(base)}")}}
            for line in fault.lines
            if line.location is not None
        ],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }


def _sarif_location(place: Location, base: str) -> dict[str, Any]:
    path = uri(place.file.removeprefix(base.rstrip(os.sep) + os.sep) if base else place.file)
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": f"file://{path}" if path.startswith("/") else path},
            "region": {"startLine": max(1, place.line)},
        }
    }
