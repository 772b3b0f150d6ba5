"""Check -> a line for each thing that is new or worse, as compilers write, and one that sums up."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Check, Occurrence, occurrences
from graphdoctor.values.escape import visible


def render(check: Check, look: Look) -> str:
    """path:line: severity: rule name: message [targets]; known findings are only counted."""
    return "".join(f"{line}\n" for line in _lines(check))


def _lines(check: Check) -> Iterator[str]:
    for one in occurrences(check, is_new=True):
        finding = one.checked.finding
        where = wording.place(one.checked.path, one.checked.line) or "no file"
        note = wording.library_note(one.checked)
        message = visible(finding.message) + (f" ({note})" if note else "")
        yield (
            f"{where}: {one.checked.severity}: {wording.title(finding)}:"
            f" {message} [{wording.names(one.targets)}]{_with(check, one)}"
        )
    for problem in wording.problems(check):
        where = wording.place(problem.path) or "no file"
        message = visible(problem.message)
        yield f"{where}: error: {problem.title}: {message} [{visible(problem.target)}]"
    if check.stale:
        yield f"{'error' if check.stale_fails else 'warning'}: {wording.stale_text(check)}"
    known = len(occurrences(check, is_new=False))
    word = "passed" if wording.passed(check) else "failed"
    yield f"{word}: {wording.headline(check)}" + (f" ({known} known)" if known else "")


def _with(check: Check, one: Occurrence) -> str:
    worse = wording.came_with(check, one)
    return f" (with it, {worse})" if worse else ""
