"""`with graphdoctor.allowed(...)` in the user's code: read in the source, free when it runs."""

from __future__ import annotations

import importlib.util
import linecache
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import graphdoctor
from graphdoctor.diagnose.suppress import allowed_in
from graphdoctor.values.report import Report

MODEL = """
import torch
{imported}

class Net(torch.nn.Module):
    def forward(self, x):
        with {block}:
            {inside}
        {outside}
        return x + 1
"""
WANTED = 'graphdoctor.allowed("GD101", reason="the log reads it")'


def analyzed(
    folder: Path,
    *,
    block: str = WANTED,
    imported: str = "import graphdoctor",
    inside: str = "x.sum().item()",
    outside: str = "pass",
) -> Report:
    path = folder / "net.py"
    path.write_text(MODEL.format(block=block, imported=imported, inside=inside, outside=outside))
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location("net", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return graphdoctor.analyze(module.Net(), torch.ones(4), device="emulated", strategies=())


def reasons(report: Report) -> list[str]:
    found = [one for one in report.findings if one.rule == "GD101"]
    return [one.suppressed.reason if one.suppressed is not None else "" for one in found]


@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("import graphdoctor", "graphdoctor.allowed"),
        ("import graphdoctor as gd", "gd.allowed"),
        ("from graphdoctor import allowed as fine", "fine"),
    ],
)
def test_findings_inside_are_suppressed_with_the_reason(
    imported: str, name: str, tmp_path: Path
) -> None:
    block = f'{name}("host-read", reason="the log reads it")'
    report = analyzed(tmp_path, block=block, imported=imported)
    assert reasons(report) == ["the log reads it"]
    assert report.verdict != "safe"  # what is suppressed is still true


def test_lines_outside_and_other_rules_are_not_meant(tmp_path: Path) -> None:
    assert reasons(analyzed(tmp_path, outside="x.max().item()")) == ["the log reads it", ""]
    other = analyzed(tmp_path, block='graphdoctor.allowed("GD104", reason="r")')
    assert reasons(other) == [""]
    assert [one.message for one in other.idle_comments] == ['allowed("GD104") suppresses nothing']


def test_rule_that_is_not_there_or_not_written_out_is_said(tmp_path: Path) -> None:
    (unknown,) = analyzed(tmp_path, block='graphdoctor.allowed("GD999", reason="r")').idle_comments
    assert unknown.kind == "unknown-rule"
    (unclear,) = analyzed(
        tmp_path, block='graphdoctor.allowed(*["GD101"], reason="r")'
    ).idle_comments
    assert unclear.kind == "not-understood" and "write its rules out" in unclear.message


def test_another_s_function_of_that_name_is_none_of_ours() -> None:
    assert (
        allowed_in(["from other import allowed\n", "with allowed('GD101'):\n", "    pass\n"]) == ()
    )
    assert allowed_in(["with allowed(:\n"]) == ()


def test_it_imports_no_torch_and_lets_errors_through() -> None:
    code = (
        "import sys, graphdoctor\n"
        "try:\n"
        "    with graphdoctor.allowed('GD101', reason='r'): 1 / 0\n"
        "except ZeroDivisionError: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "rules", "reason"),
    [
        ('graphdoctor.allowed("GD101", reason="why")', ("GD101",), "why"),
        ('graphdoctor.allowed("GD101", "GD103", reason="why")', ("GD101", "GD103"), "why"),
        ("graphdoctor.allowed(RULE, reason=WHY)", (), ""),
        ('graphdoctor.allowed("GD101", RULE, reason="why")', (), "why"),
        ('graphdoctor.allowed("GD101", 3, reason="why")', (), "why"),
    ],
)
def test_only_rules_that_are_all_written_out_are_taken(
    text: str, rules: tuple[str, ...], reason: str
) -> None:
    source = f"import graphdoctor\nwith open(f) as g, {text}:\n\n    x()\n    y(\n    )\nz()\n"
    (found,) = allowed_in(source.splitlines(keepends=True))
    assert (found.rules, found.reason, found.line) == (rules, reason, 2)
    assert (found.first, found.last) == (4, 6)
    assert found.is_block and not found.is_for_file and found.text == text.replace('"', "'")


@pytest.mark.parametrize(
    ("imports", "call", "is_ours"),
    [
        ("import graphdoctor as gd", "gd.allowed", True),
        ("import graphdoctor as gd", "graphdoctor.allowed", False),
        ("from graphdoctor import allowed", "allowed", True),
        ("from graphdoctor import allowed as fine", "fine", True),
        ("from graphdoctor import allowed as fine", "allowed", False),
        ("from graphdoctor import capture as allowed", "allowed", False),
        ("from other import allowed", "allowed", False),
        ("import other as graphdoctor", "graphdoctor.allowed", False),
    ],
)
def test_the_block_is_known_by_what_the_file_calls_it(
    imports: str, call: str, is_ours: bool
) -> None:
    source = f'{imports}\nwith {call}("GD101", reason="why"):\n    x()\n'
    assert len(allowed_in(source.splitlines(keepends=True))) == is_ours


def test_a_block_is_found_where_every_line_speaks_of_it() -> None:
    source = ["from graphdoctor import allowed\n", 'with allowed("GD101"): allowed\n']
    (found,) = allowed_in(source)
    assert (found.line, found.first, found.last) == (2, 2, 2)


def test_blocks_are_told_in_the_order_of_their_lines() -> None:
    block = 'with graphdoctor.allowed("{}", reason="why"):\n'
    source = (
        "import graphdoctor\ndef f():\n    if x:\n        " + block.format("GD101") + "            y()\n"
        + block.format("GD103") + "    z()\n"
    )  # fmt: skip
    found = allowed_in(source.splitlines(keepends=True))
    assert [one.rules for one in found] == [("GD101",), ("GD103",)]
