"""Two runs of a program, as it is and changed -> what of their results is alike, or what differs, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from graphdoctor.strategies.patch.rerun import Run
from graphdoctor.values.figures import count_text, shortened, time_text

_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")
_OF_TIME = re.compile(
    r"time|second|elapsed|duration|throughput|speed|runtime|mfu|eta|/\s?s\b|\b(ms|s|sec|us)\b", re.I
)
_NEAR = 24  # characters around a number, among which stands what it is a number of
_NOTHING = "The program printed nothing and stepped no optimizer, so nothing says whether its results are the same."
_MOST_WORSE = 10.0  # times what the program differs from itself


@dataclass(frozen=True, slots=True)
class Likeness:
    """Whether the changed program gave the same results, and what shows it."""

    is_same: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class _Difference:
    """A number, or all other text of a line, that is not the same in two runs."""

    line: int
    part: int
    before: str
    after: str


def likeness(
    plain: Run, changed: Run, again: Run | None = None, *, captures: bool = True
) -> Likeness:
    """`again` is one more run of the program as it is, for what it differs by from itself.

    `captures`: the change captures models, so that their calls have to have been replayed.
    """
    if reason := _broken(plain, changed):
        return Likeness(False, reason)
    if captures and not changed.replays:
        return Likeness(False, _no_replay(changed))
    different = _differences(plain, changed)
    own = {(d.line, d.part): d for d in _differences(plain, again)} if again is not None else {}
    beyond = [d for d in different if not _is_like_own(d, own)]
    if beyond:
        return Likeness(False, _differs(beyond[0], is_own=bool(own)))
    lines = _compared_lines(plain, changed)
    said = _weights(plain, changed, again)
    if not lines and not said:
        return Likeness(False, _NOTHING)
    if said is None:
        return Likeness(False, "The weights that the changed program leaves are others.")
    printed = _printed(len(lines), len(different)) if lines else ""
    clauses = (printed, said, _replayed(changed), _times(plain, changed))
    return Likeness(True, f"{'; '.join(filter(None, clauses))}.")


def needs_another(plain: Run, changed: Run) -> bool:
    """Whether a second run of the program as it is would say more."""
    if _broken(plain, changed):
        return False
    return bool(_differences(plain, changed)) or _deviation(plain, changed) != 0.0


def _broken(plain: Run, changed: Run) -> str:
    if plain.failure:
        return f"The program as it is failed when it was run again: {plain.failure}"
    if changed.failure:
        return f"The changed program failed: {changed.failure}"
    if plain.has_ended and changed.has_ended and plain.exit_code != changed.exit_code:
        return f"The changed program ended with exit code {changed.exit_code} instead of {plain.exit_code}."
    return ""


def _no_replay(changed: Run) -> str:
    if not changed.has_ended:
        return "The changed program did not end in time, so nothing says whether its graphs were replayed."
    why = max(changed.fallbacks, key=lambda reason: changed.fallbacks[reason], default="")
    return f"In the changed program no graph was replayed{f': {why}' if why else '.'}"


def _compared_lines(plain: Run, changed: Run) -> list[tuple[str, str]]:
    """Those of both; where one was stopped, what it printed until then, in whole lines."""
    one, other = _lines(plain), _lines(changed)
    if plain.has_ended and changed.has_ended:
        most = max(len(one), len(other))
        one, other = one + [""] * (most - len(one)), other + [""] * (most - len(other))
    return list(zip(one, other, strict=False))


def _lines(run: Run) -> list[str]:
    lines = run.printed.splitlines()
    return lines if run.has_ended or run.printed.endswith("\n") else lines[:-1]


def _differences(plain: Run, other: Run) -> list[_Difference]:
    found: list[_Difference] = []
    for number, (before, after) in enumerate(_compared_lines(plain, other), start=1):
        if before != after:
            found.extend(_in_line(number, before, after))
    return found


def _in_line(line: int, before: str, after: str) -> Iterator[_Difference]:
    one, other = _NUMBER.split(before), _NUMBER.split(after)
    if one[::2] != other[::2]:
        if not _is_bar(before, after):
            yield _Difference(line, -1, before, after)
        return
    for part in range(1, len(one), 2):
        if one[part] == other[part]:
            continue
        near = one[part - 1][-_NEAR:] + " " + one[part + 1][:_NEAR]
        if not _OF_TIME.search(near):
            yield _Difference(line, part, one[part], other[part])


def _is_bar(before: str, after: str) -> bool:
    """A progress bar is drawn as often as there is time for."""
    return "it/s" in before + after or "s/it" in before + after


def _is_like_own(different: _Difference, own: dict[tuple[int, int], _Difference]) -> bool:
    """No further from the program's number than the program's own next run was."""
    of_itself = own.get((different.line, different.part))
    if of_itself is None or different.part < 0:
        return False
    before = float(of_itself.before)
    return abs(float(different.after) - before) <= _MOST_WORSE * abs(
        float(of_itself.after) - before
    )


def _differs(different: _Difference, *, is_own: bool) -> str:
    where = f"line {different.line} of what the changed program printed"
    instead = f"`{shortened(different.after)}` instead of `{shortened(different.before)}`"
    itself = ", more than what the program differs by from itself" if is_own else ""
    return f"In {where} stands {instead}{itself}."


def _printed(lines: int, differing: int) -> str:
    if differing:
        return (
            f"the {count_text(lines, 'line')} that it prints are the same, but for"
            f" {count_text(differing, 'number')} no further apart than between two runs of the program"
            " as it is"
        )
    return f"what it prints is the same ({count_text(lines, 'line')}, times apart)"


def _weights(plain: Run, changed: Run, again: Run | None) -> str | None:
    """A clause on the weights after the last step; "" where there are none to compare, None where they differ."""
    if not (
        plain.has_ended and changed.has_ended and plain.steps == changed.steps and plain.weights
    ):
        return ""
    count, off = len(plain.weights), _deviation(plain, changed)
    after = f"after {count_text(plain.steps, 'step')}"
    if off == 0.0:
        return f"its {count_text(count, 'weight tensor')} {after} are the same bit for bit"
    own = _deviation(plain, again) if again is not None else 0.0
    if off > _MOST_WORSE * own:
        return None
    return f"its weights {after} are off by {off:.1g}, the program's own next run's by {own:.1g}"


def _deviation(plain: Run, other: Run) -> float:
    """The largest difference of a weight, relative to the largest of its tensor."""
    if not plain.weights or not other.weights or plain.steps != other.steps:
        return 0.0
    return max(map(_off, plain.weights, other.weights), default=0.0)


def _off(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    if torch.equal(one, other) or one.numel() == 0:
        return 0.0
    difference = (one.double() - other.double()).abs().max().item()
    return difference / max(one.double().abs().max().item(), 1e-30)


def _replayed(changed: Run) -> str:
    if not changed.replays:
        return ""
    return f"{count_text(changed.replays, 'call')} {'was' if changed.replays == 1 else 'were'} replayed"


def _times(plain: Run, changed: Run) -> str:
    """On a GPU, what a step took in the two runs, with all that the program does around it."""
    if plain.step_us is None or changed.step_us is None:
        return ""
    faster = plain.step_us / changed.step_us
    return (
        f"a step took {time_text(plain.step_us)} as it is and {time_text(changed.step_us)} changed,"
        f" {faster:.2f}x, in one run of each"
    )
