"""Comments and settings leave findings out, visibly, and never change the verdict."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from graphdoctor.check.selection import selected, unused_comments
from graphdoctor.cli import main
from graphdoctor.diagnose.suppress import comments_in, suppress
from graphdoctor.pipeline import analyze_target
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.finding import Finding, IdleComment, Suppression, caller_of
from graphdoctor.values.locations import Location
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Op
from graphdoctor.values.report import Report
from tests.diagnose.test_diagnose import iteration, op, recording
from tests.support.checking import checked, finding, project, report, run

LIBRARY = "/venv/lib/python3.11/site-packages/library/core.py"


def lines(text: str) -> list[str]:
    return textwrap.dedent(text).lstrip("\n").splitlines(keepends=True)


@pytest.mark.parametrize(
    ("source", "first", "last"),
    [
        ("x = y.item()  # graphdoctor: ignore[GD101] known\n", 1, 1),
        ("x = max(\n    y.item(),  # graphdoctor: ignore[GD101] known\n    1,\n)\n", 1, 4),
        ("if y.item():  # graphdoctor: ignore[GD101] known\n    z()\n", 1, 1),
        ("if a:\n    z(\n\n    # graphdoctor: ignore[GD101] known\n    )\n", 2, 5),
        ('x = """\n"""; y()  # noqa: E702  # graphdoctor: ignore[GD101] known  # more\n', 1, 2),
    ],
)
def test_a_comment_is_about_its_whole_statement(source: str, first: int, last: int) -> None:
    (comment,) = comments_in(source.splitlines(keepends=True))
    assert (comment.rules, comment.reason) == (("GD101",), "known")
    assert (comment.first, comment.last, comment.is_for_file) == (first, last, False)
    assert comment.covers(first) and comment.covers(last)
    assert not comment.covers(first - 1) and not comment.covers(last + 1)


def test_a_comment_for_the_file_stands_anywhere_and_names_several_rules() -> None:
    (comment,) = comments_in(["# graphdoctor: file-ignore[GD101, host-to-device-copy]: a demo\n"])
    assert (comment.rules, comment.reason) == (("GD101", "host-to-device-copy"), "a demo")
    assert comment.is_for_file and comment.covers(1) and comment.covers(10_000)


@pytest.mark.parametrize(
    "source",
    [
        'x = "# graphdoctor: ignore[GD101]"\n',
        "'''\n# graphdoctor: ignore[GD101]\n'''\n",
        "x = ((  # graphdoctor: ignore[GD101]\n",
        "",
    ],
)
def test_texts_and_what_is_not_python_hold_no_comments(source: str) -> None:
    assert comments_in(source.splitlines(keepends=True)) == ()


SOURCE = """
    def step(x):
        a = x.item()  # graphdoctor: ignore[GD101] read once a day
        b = x.item()
        c = x + 1  # graphdoctor: ignore[host-read, GD104] no more
        return a, b, c

    def other(x):
        return x.item()  # graphdoctor: ignore[GD101] never run here
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "model.py"
    file.write_text("".join(lines(SOURCE)))
    return str(file)


def ran(file: str, *numbers: int) -> Op:
    """An operator that was called from these lines, innermost first."""
    location, *stack = (Location(file, number) for number in numbers)
    return op(0, "aten.add.Tensor", location=location, stack=tuple(stack))


def marked(findings: Sequence[Finding], ops: Sequence[Op], *, file: str):
    return suppress(findings, recording(iteration(0, ops)), file=file)


def test_a_finding_is_marked_with_the_comment_s_reason_and_line(source: str) -> None:
    findings = [finding(2, file=source), finding(3, file=source), finding(2, rule="GD104")]
    found, _ = marked(findings, [ran(source, 2)], file=source)
    assert [one.suppressed for one in found] == [
        Suppression("read once a day", Location(source, 2)),
        None,
        None,
    ]
    plain = [msgspec.structs.replace(one, suppressed=None) for one in found]
    assert plain == findings


def test_a_finding_without_a_line_is_left_out_by_comments_for_the_file_alone(
    tmp_path: Path,
) -> None:
    nowhere = msgspec.structs.replace(finding(2), location=None)
    for comment, is_marked in (("ignore", False), ("file-ignore", True)):
        file = tmp_path / f"{comment}.py"
        file.write_text(f"x.item()  # graphdoctor: {comment}[GD101] known\n")
        ((found,), _) = marked([nowhere], [ran(str(file), 1)], file=str(file))
        assert (found.suppressed is not None) == is_marked


def test_the_comment_on_the_line_gives_the_reason_where_the_file_s_would_do_too(
    tmp_path: Path,
) -> None:
    file = tmp_path / "model.py"
    text = (
        "# graphdoctor: file-ignore[GD101] a demo\nx.item()  # graphdoctor: ignore[GD101] known\n"
    )
    file.write_text(text)
    ((found,), idle) = marked([finding(2, file=str(file))], [ran(str(file), 2)], file=str(file))
    assert found.suppressed == Suppression("known", Location(str(file), 2))
    assert [(one.location.line, one.kind) for one in idle] == [(1, "unused")]


def test_unused_comments_are_told_of_code_that_ran_only(source: str) -> None:
    _, idle = marked([finding(2, file=source)], [ran(source, 3)], file=source)
    assert [(one.location.line, one.rule, one.kind) for one in idle] == [
        (4, "host-read", "unused"),
        (4, "GD104", "unused"),
    ]
    assert idle[1].message == "ignore[GD104] suppresses nothing"
    _, idle = marked([], [ran(source, 8)], file=source)
    assert [one.location.line for one in idle] == [8]
    assert marked([], [], file=source)[1] == ()


NESTED = """
    def outer(x):  # graphdoctor: ignore[GD101]
        def inner(y):
            return y  # graphdoctor: ignore[GD101]
        return inner(x)
    z = 1  # graphdoctor: ignore[GD101]
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [(1, [1, 5]), (2, [1, 3, 5]), (3, [1, 3, 5]), (4, [1, 5]), (5, [5])],
)
def test_code_around_a_comment_is_its_innermost_function_from_end_to_end(
    line: int, told: list[int], tmp_path: Path
) -> None:
    file = str(model(tmp_path, NESTED))
    _, idle = marked([], [ran(file, line)], file=file)
    assert [one.location.line for one in idle] == told


def test_a_finding_in_a_library_is_suppressed_on_the_user_s_line(source: str) -> None:
    deep = finding(7, file=LIBRARY, stack=(Location(LIBRARY, 70), Location(source, 2)))
    elsewhere = finding(7, file=LIBRARY, stack=(Location(source, 3), Location(source, 2)))
    (one, other), _ = marked([deep, elsewhere], [ran(source, 2)], file=source)
    assert one.suppressed is not None and one.suppressed.location == Location(source, 2)
    assert other.suppressed is None  # line 2 is only where line 3 was called from


@pytest.mark.parametrize(
    ("comment", "kind", "message"),
    [
        ("x()  # graphdoctor: ignore[GD1O1]", "unknown-rule", "nearest one is 'GD101'"),
        ("x()  # graphdoctor: ignore[host-raed]", "unknown-rule", "nearest one is 'host-read'"),
        ("x()  # graphdoctor: ignore[GD1]", "unknown-rule", "there is no rule 'GD1'"),
        ("x()  # graphdoctor: ignore", "not-understood", "write `# graphdoctor: ignore[GD101] r"),
        ("x()  # graphdoctor: ignore[]", "not-understood", "is not understood"),
        ("# graphdoctor: ignore[GD101] why", "misplaced", "put it at the end of its line"),
    ],
)
def test_a_comment_that_cannot_work_says_why(
    comment: str, kind: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"{comment}\n")
    (one,), (idle,) = marked([finding(1, file=str(file))], [], file=str(file))
    assert one.suppressed is None
    assert (idle.kind, idle.location) == (kind, Location(str(file), 1))
    assert message in idle.message


def test_a_comment_for_the_file_holds_for_findings_without_a_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("# graphdoctor: file-ignore[GD302, gd101]\nx()\n")
    slow = finding(rule="GD302", location=None)
    found, idle = marked([slow, finding(2, file=str(file))], [ran(str(file), 2)], file=str(file))
    assert [one.suppressed.reason for one in found if one.suppressed] == ["no reason given"] * 2
    assert idle == ()
    found, idle = marked([finding(2)], [ran(str(file), 2)], file=str(file))
    assert found[0].suppressed is None
    assert [one.message for one in idle] == [
        "file-ignore[GD302] suppresses nothing",
        "file-ignore[gd101] suppresses nothing",
    ]


MODEL = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = self.first(x)
            scale = float(
                x.sum().item()  # graphdoctor: ignore[GD101] read for a log
            )
            return x * scale  # graphdoctor: ignore[GD104]

    def get_inputs():
        return torch.ones(2, 8)
"""
SAFE_MODEL = MODEL.replace("x.sum().item()", "x.shape[0]")


def model(folder: Path, text: str = MODEL) -> Path:
    file = folder / "net.py"
    file.write_text("".join(lines(text)))
    return file


def analyzed(file: Path) -> Report:
    return analyze_target(str(file), AnalyzeOptions(device="emulated"), lambda doing: None)


def test_the_verdict_is_the_same_with_and_without_suppressions(tmp_path: Path) -> None:
    with_comments = analyzed(model(tmp_path))
    (tmp_path / "plain").mkdir()
    plain = analyzed(model(tmp_path / "plain", MODEL.replace("# graphdoctor: ", "# ")))
    (host_read,) = [one for one in with_comments.findings if one.rule == "GD101"]
    assert host_read.suppressed == Suppression(
        "read for a log", Location(str(tmp_path / "net.py"), 11)
    )
    assert with_comments.verdict in ("unsafe", "partly-safe")
    assert (with_comments.verdict, with_comments.reason) == (plain.verdict, plain.reason)
    assert not any(one.suppressed for one in plain.findings)
    assert [(one.location.line, one.rule) for one in with_comments.idle_comments] == [(13, "GD104")]


def test_a_safe_step_stays_safe_and_says_that_its_comments_are_idle(tmp_path: Path) -> None:
    safe = analyzed(model(tmp_path, SAFE_MODEL))
    assert safe.verdict == "safe"
    assert [(one.rule, one.kind) for one in safe.idle_comments] == [
        ("GD101", "unused"),
        ("GD104", "unused"),
    ]


def test_settings_leave_findings_out_of_an_analysis_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path, MODEL.replace("# graphdoctor: ", "# "))
    (tmp_path / "graphdoctor.toml").write_text('per-file-ignores = {"net.py" = ["host-read"]}\n')
    monkeypatch.chdir(tmp_path)
    call = ["analyze", "net.py", "--device", "emulated", "--json", "-"]

    def suppressed(*more: str) -> tuple[str, list[str]]:
        assert main([*call, *more]) == 0
        saved = json.loads(capsys.readouterr().out)
        reasons = [one["suppressed"] for one in saved["findings"] if one["rule"] == "GD101"]
        return saved["verdict"], [one["reason"] if one else "" for one in reasons]

    verdict, reasons = suppressed()
    assert reasons == ["left out by `per-file-ignores` in the settings"]
    assert suppressed("--isolated") == (verdict, [""])
    assert main([*call, "--config", 'ignore=["GD9"]']) == 2
    assert "names no rule: 'GD9'; the nearest one is" in capsys.readouterr().err


DEEP = """
    def deep(depth, x):
        return deep(depth - 1, x) if depth else x * float(x.sum())
"""
CALLER = """
    import sys
    import torch

    sys.path.append("{folder}")
    from a_library_for_this_test import deep

    class Model(torch.nn.Module):
        def forward(self, x):
            x = deep(20, x)
            return deep(20, x)  # graphdoctor: ignore[host-read] it is theirs to mend

    def get_inputs():
        return torch.ones(2, 8)
"""


def test_a_line_of_a_library_is_judged_for_each_line_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    library = folder / "a_library_for_this_test.py"
    library.write_text("".join(lines(DEEP)))
    monkeypatch.setattr("sys.path", [*sys.path])
    file = model(tmp_path, CALLER.format(folder=folder))
    found = [one for one in analyzed(file).findings if one.rule == "GD101"]
    assert [one.location for one in found] == [Location(str(library), 2, "deep")] * 2
    callers = [caller_of(one) for one in found]
    assert [one.line for one in callers if one is not None] == [9, 10]
    assert [one.suppressed.reason if one.suppressed else "" for one in found] == [
        "",
        "it is theirs to mend",
    ]


def test_each_setting_marks_what_it_leaves_out() -> None:
    found = report(finding(), finding(rule="GD202"), finding(rule="GD301", location=None))
    settings = project(
        select=("GD1", "GD3"), ignore=("GD101",), per_file_ignores=(("models/*.py", ("GD301",)),)
    )
    result = selected(found, settings, otherwise="models/net.py")
    reasons = [one.suppressed.reason.split("`")[1] for one in result.findings if one.suppressed]
    assert reasons == ["ignore", "select", "per-file-ignores"]
    known = msgspec.structs.replace(finding(), suppressed=Suppression("a comment's"))
    assert selected(report(known), settings).findings == (known,)


def test_suppressed_findings_pass_a_check_and_stay_in_its_report() -> None:
    known = finding(suppressed=Suppression("known", Location("models/net.py", 3)))
    assert checked({"net": report(finding())}).exit_code == 1
    check = checked({"net": report(known)})
    assert check.exit_code == 0
    (target,) = check.targets
    assert target.findings == ()
    assert target.report is not None and target.report.findings == (known,)
    assert target.report.verdict == "unsafe"
    assert target.figures is not None and target.figures.syncs == 1


def test_a_check_takes_comments(tmp_path: Path) -> None:
    model(tmp_path, MODEL + "\n    # graphdoctor: file-ignore[GD1O1]\n")
    (tmp_path / ".git").mkdir()
    done = run("check", "net.py", "--report=json=check.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    saved = json.loads((tmp_path / "check.json").read_text())
    (target,) = saved["targets"]
    kept = [one["suppressed"] for one in target["report"]["findings"] if one["suppressed"]]
    location = {"file": "net.py", "line": 11, "function": ""}
    assert kept == [{"reason": "read for a log", "location": location}]
    assert not any(one["finding"]["rule"] == "GD101" for one in target["findings"])
    assert target["report"]["verdict"] in ("unsafe", "partly-safe")
    assert "1 suppressed" in done.stdout
    notes = " ".join(done.stdout.split())
    assert "net.py:13: ignore[GD104] suppresses nothing in net" in notes
    assert "net.py:18: there is no rule 'GD1O1'; the nearest one is 'GD101'" in notes


def test_the_page_of_a_check_has_a_fix_once_and_frames_where_asked_for() -> None:
    deep = finding(9, file="site-packages/library/core.py", stack=(Location("models/net.py", 3),))
    check = checked({"net": report(deep, finding(5, source="y.item()"))})
    page = written_as("full", check, Look())
    assert page.count("    Fix   Keep it on the device.") == 1
    assert page.count("    Fix   ") == 1 and "models/net.py:5" in page
    assert "called from models/net.py:3\n" not in page
    frames = written_as("full", check, Look(show_frames=True))
    assert frames.count("    called from models/net.py:3\n") == 1


def idle(rule: str, kind: str = "unused") -> IdleComment:
    return IdleComment(Location("models/net.py", 3), rule, kind, f"ignore[{rule}] does nothing")


def test_a_comment_that_another_target_needs_is_not_idle() -> None:
    known = finding(suppressed=Suppression("known", Location("models/net.py", 3)))
    unused = report(idle_comments=(idle("host-read"), idle("GD104"), idle("GD9", "unknown-rule")))
    name = unused.target.name
    assert unused_comments([report(known), unused, "no report"]) == [
        f"models/net.py:3: ignore[GD104] does nothing in {name}",
        "models/net.py:3: ignore[GD9] does nothing",
    ]
    alone = checked({"net": report(idle_comments=(idle("GD101"),))})
    assert alone.notes == (f"models/net.py:3: ignore[GD101] does nothing in {name}",)
    assert alone.exit_code == 0
