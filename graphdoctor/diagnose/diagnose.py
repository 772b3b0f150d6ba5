"""Finds the hazards of a recording: worst first, one finding for each cause, with its source lines."""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.rule import Hit, RecordingRule, Rule
from graphdoctor.target.frames import bytes_of_expression
from graphdoctor.values.finding import Cure, Finding
from graphdoctor.values.locations import Columns, Excerpt, Location, is_library, line_of, own_line
from graphdoctor.values.recording import Recording

_CONTEXT_LINES = 3
_EFFECTS = ("capture-fails", "replay-is-wrong", "replay-is-slow")


class Diagnosis(Struct, frozen=True):
    """`findings` are for people, one for each cause; `hits` are all places, by rule id."""

    findings: tuple[Finding, ...]
    hits: tuple[tuple[str, Hit], ...]

    def without(self, refuted: Sequence[Finding]) -> Diagnosis:
        """What stands where the machine has shown these operators to be no hazard."""
        gone = {found.location for found in refuted}
        return Diagnosis(
            findings=tuple(found for found in self.findings if found not in refuted),
            hits=tuple(
                (rule, hit)
                for rule, hit in self.hits
                if not (hit.refused_alone and hit.location in gone)
            ),
        )


class _Place(Struct, frozen=True):
    """Where findings are one: a line, or an operator of a module where the line is not known.

    A line of a library that the user calls from two lines is two places: each is theirs to change.
    """

    file: str
    line: int
    operator: str = ""
    module: str = ""
    caller: Location | None = None


def diagnose(recording: Recording, rules: Sequence[type[Rule]] = ALL_RULES) -> Diagnosis:
    """Run every rule that a recording decides; the time is linear in the number of operators."""
    asked = [rule for rule in rules if issubclass(rule, RecordingRule)]
    hits = [(rule, hit) for rule in asked for hit in rule().check(recording)]
    groups: dict[tuple[type[RecordingRule], _Place], list[Hit]] = {}
    for rule, hit in hits:
        groups.setdefault((rule, _place(hit)), []).append(hit)
    explained: dict[_Place, set[str]] = {}
    for rule, place in groups:
        explained.setdefault(place, set()).update(rule.explains)
    kept = [
        (rule, group) for (rule, place), group in groups.items() if rule.id not in explained[place]
    ]
    kept.sort(key=lambda pair: _order(*pair))
    return Diagnosis(
        findings=tuple(_finding(rule, group) for rule, group in kept),
        hits=tuple((rule.id, hit) for rule, hit in hits),
    )


def excerpt_at(place: Location | None) -> Excerpt | None:
    """The source lines around a place, or None where the file cannot be read."""
    if place is None:
        return None
    source = linecache.getlines(place.file)
    if not 1 <= place.line <= len(source):
        return None
    first = max(1, place.line - _CONTEXT_LINES)
    lines = source[first - 1 : place.line + _CONTEXT_LINES]
    return Excerpt(first_line=first, lines=tuple(line.rstrip("\n") for line in lines))


def columns_at(place: Location) -> Columns | None:
    """The expression at a place that was recorded in this process; Python counts its bytes."""
    reach = bytes_of_expression(place)
    line = linecache.getline(place.file, place.line).rstrip("\n").encode()
    if reach is None or not reach[0] < reach[1] <= len(line):
        return None
    start, end = (len(line[:count].decode(errors="replace")) + 1 for count in reach)
    return Columns(start, end)


def _place(hit: Hit) -> _Place:
    if hit.location is None:
        return _Place("", 0, hit.operator, hit.module)
    own = own_line((hit.location, *hit.stack))
    caller = own if own is not hit.location else None
    return _Place(hit.location.file, hit.location.line, caller=caller)


def _order(rule: type[Rule], group: Sequence[Hit]) -> tuple[int, int, str]:
    return _EFFECTS.index(rule.effect), min(hit.op_index for hit in group), rule.id


def _finding(rule: type[Rule], group: Sequence[Hit]) -> Finding:
    first = min(group, key=lambda hit: (hit.iteration, hit.op_index))
    places = {id(hit.location): hit.location for hit in group}
    found = {columns_at(place) if place is not None else None for place in places.values()}
    cure = _cure(rule, group)
    return replace(
        rule.finding(first.message, first.location),
        fix=cure.text,
        fix_code=cure.code,
        excerpt=excerpt_at(first.location),
        columns=found.pop() if len(found) == 1 else None,
        edits=cure.edits,
        stack=first.stack,
        module=first.module,
        phase=first.phase,
        operator=first.operator,
        count=_per_step(group),
    )


def _cure(rule: type[Rule], group: Sequence[Hit]) -> Cure:
    """What to write instead; of a library's line that only an edit there cures, also what the reader's line can do."""
    texts = dict.fromkeys(hit.cure.text for hit in group if hit.cure.text)
    codes = {hit.cure.code for hit in group if hit.cure.code}
    first = group[0].cure
    text, code = " ".join(texts) or rule.fix, codes.pop() if len(codes) == 1 else ()
    edits = first.edits if all(hit.cure.edits == first.edits for hit in group) else ()
    caller = _place(group[0]).caller
    is_elsewhere = bool(code) or any(not is_library(edit.file) for edit in edits)
    if caller is None or is_elsewhere or rule.effect != "capture-fails":
        return Cure(text, code, edits)
    library = (
        "This line is a library's: if none of its arguments or settings avoids it, keep "
        f"{line_of(caller)}, which calls it, outside the captured region."
    )
    return Cure(f"{text} {library}", code, edits)


def _per_step(group: Sequence[Hit]) -> int:
    """How many places of one iteration the rule found, at most."""
    places: dict[int, set[int]] = {}
    for hit in group:
        found = places.setdefault(hit.iteration, set())
        if not hit.follows:
            found.add(hit.op_index)
    return max(1, *map(len, places.values()))
