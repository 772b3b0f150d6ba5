"""What a rule found in a step, whom it concerns, and what a comment says of it; plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.locations import Columns, Excerpt, Location, is_library, own_line

Effect = Literal["capture-fails", "replay-is-wrong", "replay-is-slow"]
Severity = Literal["error", "warning", "note"]
Certainty = Literal["confirmed", "likely", "unknown"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # worst first
EFFECT_WORDS: dict[Effect, str] = {
    "capture-fails": "capture fails",
    "replay-is-wrong": "replay is wrong",
    "replay-is-slow": "replay is slow",
}
CERTAINTY_WORDS: dict[Certainty, str] = {
    "confirmed": "confirmed by a trial capture",
    "likely": "",
    "unknown": "could not be checked",
}
_T = TypeVar("_T")


class Suppression(Struct, frozen=True):
    """Why a finding does not count: a comment at `location` says so, or else the settings do."""

    reason: str
    location: Location | None = None


class IdleComment(Struct, frozen=True):
    """A suppression comment that does nothing. `rule` is what it names, as it is written there."""

    location: Location
    rule: str
    kind: Literal["unused", "unknown-rule", "misplaced", "not-understood"]
    message: str


class Edit(Struct, frozen=True):
    """Text that replaces a range of a file: lines and columns count characters from 1, the end is not in the range."""

    file: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int
    new_text: str


class Cure(Struct, frozen=True):
    """What to write instead: sentences, the lines of code that they introduce, the same as replacements of text."""

    text: str = ""
    code: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


class Finding(Struct, frozen=True):
    """One reason why the step is not safe, or not worth it, as a CUDA graph.

    `count` is how often one step does it. `stack` leads from the location outwards to the caller.
    `cost_us` is the time one eager step would save without its waits and copies, all else being as
    it is; None where nothing is known of it. `cost_source` says how it is known.
    `certainty` is "confirmed" where the (emulated) machine showed the effect in this run,
    "likely" where the mechanism was seen, "unknown" where it could not be checked.
    What is `suppressed` is still true, and still counts for the verdict.
    `columns` are those of the location's expression; None where Python does not say, or where it
    reaches over several lines.
    `fix`, `fix_code` and `edits` are its `Cure`.
    """

    rule: str
    name: str
    effect: Effect
    message: str
    why: str
    fix: str
    location: Location | None
    excerpt: Excerpt | None = None
    stack: tuple[Location, ...] = ()
    module: str = ""
    phase: str = "forward"
    operator: str = ""
    count: int = 1
    certainty: Certainty = "likely"
    suppressed: Suppression | None = None
    cost_us: Range | None = None
    cost_source: str = ""
    columns: Columns | None = None
    edits: tuple[Edit, ...] = ()
    fix_code: tuple[str, ...] = ()

    @property
    def code(self) -> str | None:
        """The location's line, as far as the excerpt has it."""
        if self.location is None or self.excerpt is None:
            return None
        index = self.location.line - self.excerpt.first_line
        return self.excerpt.lines[index] if 0 <= index < len(self.excerpt.lines) else None


def effect_text(finding: Finding) -> str:
    """ "capture fails, confirmed by a run": what the finding does to a graph, and how far that is known."""
    return ", ".join(
        filter(None, (EFFECT_WORDS[finding.effect], CERTAINTY_WORDS[finding.certainty]))
    )


def by_cure(items: Iterable[_T], finding_of: Callable[[_T], Finding]) -> list[list[_T]]:
    """Items whose findings have one cure, together: a page says it once, with a list of lines.

    Findings of two rules have one cure if it is the same edit.
    """
    groups: dict[tuple[object, ...], list[_T]] = {}
    edited: dict[tuple[Edit, ...], tuple[object, ...]] = {}
    for item in items:
        finding = finding_of(item)
        key: tuple[object, ...] = (finding.rule, finding.why, finding.fix, finding.fix_code)
        if finding.edits:
            key = edited.setdefault(finding.edits, key)
        groups.setdefault(key, []).append(item)
    return [*groups.values()]


def severity_of(finding: Finding) -> Severity:
    """An error if a graph fails or is wrong, a warning if that could not be checked, else a note."""
    if finding.effect == "replay-is-slow":
        return "note"
    return "warning" if finding.certainty == "unknown" else "error"


class Assumption(Struct, frozen=True):
    """A value that a step on shapes only needed: `what` was assumed, such as "False", at this place."""

    what: str
    operator: str
    location: Location | None = None
    code: str = ""  # the line that needs it


def caller_of(finding: Finding) -> Location | None:
    """The user's line that led to a finding in a library; None where it is the finding's own."""
    if finding.location is None or not is_library(finding.location.file):
        return None
    return own_line(finding.stack)
