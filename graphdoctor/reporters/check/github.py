"""Writes a check as annotations of GitHub Actions, worst first within their caps, and a line that sums up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, Occurrence, occurrences
from graphdoctor.values.escape import visible
from graphdoctor.values.finding import Severity

# GitHub shows this many of each kind for a step, and drops the rest without a word.
MOST_OF_A_KIND = 10
_COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}


def render(check: Check, look: Look) -> str:
    """Workflow commands; what exceeds the caps is in the step summary, which the last line says."""
    shown: Counter[str] = Counter()
    dropped = 0
    lines = []
    for command, line in _annotations(check):
        shown[command] += 1
        if shown[command] <= MOST_OF_A_KIND:
            lines.append(line)
        else:
            dropped += 1
    word = "passed" if wording.passed(check) else "failed"
    lines.append(f"graphdoctor: {word}: {_plain(wording.headline(check))}")
    if dropped:
        lines.append(f"graphdoctor: {dropped} more are in the step summary")
    return "".join(f"{line}\n" for line in lines)


def _annotations(check: Check) -> Iterator[tuple[str, str]]:
    """Each with its kind, worst first."""
    yield from (_problem(check, problem) for problem in wording.faults(check))
    yield from (_finding(check, one) for one in occurrences(check, is_new=True))
    yield from (_problem(check, problem) for problem in wording.regressions(check))
    if check.stale:
        kind = "error" if check.stale_fails else "warning"
        yield kind, command(kind, "baseline out of date", wording.stale_text(check), "")


def _problem(check: Check, problem: wording.Problem) -> tuple[str, str]:
    message = f"{problem.target}: {problem.message}"
    return "error", command("error", problem.title, message, _file(check, problem.path, 1))


def _finding(check: Check, one: Occurrence) -> tuple[str, str]:
    checked = one.checked
    kind = _COMMANDS[checked.severity]
    note, worse = wording.library_note(checked), wording.came_with(check, one)
    parts = (
        f"{checked.finding.message}{f' ({note})' if note else ''}",
        *((f"With it: {worse}",) if worse else ()),
        f"Fix: {checked.finding.fix}",
        *checked.finding.fix_code,
        f"Reached by: {wording.names(one.targets)}",
    )
    message = "\n".join(visible(part) for part in parts)
    columns = wording.columns_shown(checked)
    at = f"col={columns.start},endColumn={columns.end}," if columns is not None else ""
    where = _file(check, checked.path, checked.line) + at
    return kind, command(kind, wording.title(checked.finding), message, where)


def _file(check: Check, path: str, line: int) -> str:
    return file_and_line(check.prefix + path, line) if path else ""


def file_and_line(path: str, line: int) -> str:
    """The properties of an annotation that say where it belongs."""
    return f"file={_property(path)},line={max(1, line)},endLine={max(1, line)},"


def command(kind: str, title: str, message: str, where: str) -> str:
    """An annotation; no text in it is a command of its own."""
    shown = "\n".join(visible(line) for line in message.split("\n"))
    return f"::{kind} {where}title={_property(title)}::{_data(shown)}"


def _data(text: str) -> str:
    """Text of a message as the runner reads it back."""
    return _plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    escaped = _data(visible(text))
    return escaped.replace(":", "%3A").replace(",", "%2C")


def _plain(text: str) -> str:
    """The runner also obeys an older form of commands, anywhere in a line."""
    return text.replace("##[", "# #[")
