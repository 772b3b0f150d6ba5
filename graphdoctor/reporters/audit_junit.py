"""An audited program -> JUnit XML: a suite with a failed case for each fault, or one case that passes."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from graphdoctor.reporters.audit_faults import faults_of, headline
from graphdoctor.reporters.check.junit import add_case, add_problem, counted, document_of
from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.escape import visible
from graphdoctor.values.locations import path_text, place_text

_CLASS = "graphdoctor.audit"


def render(report: AuditReport, look: Look) -> str:
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
