"""Compare runs of a program as it is and changed: results, then times, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from graphdoctor.strategies.patch.rerun import Calls, Run
from graphdoctor.values.figures import Range, count_text, ratio_range, shortened, time_text

_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")
_OF_TIME = re.compile(
    r"time|second|elapsed|duration|throughput|speed|runtime|mfu|eta|/\s?s\b|\b(ms|s|sec|us|sps|fps)\b",
    re.I,
)
_NEAR = 24  # characters around a number, among which stands what it is a number of
_NOTHING = (
    "The program printed nothing and stepped no optimizer, so there are no results to compare."
)
_NOTHING_SINCE = (
    "The runs did not come equally far, and the program has printed nothing since its first step, so there are no"
    " results to compare. Pass more time, such as `--rerun-limit 10m`."
)
_MANY_RUNS = 6
_MOST_WORSE = 10.0  # times what the program differs from itself
_MOST_OWN = 0.1  # of the largest weight; ten times more would accept any weights
# Of a float32's value, in which losses are summed even where weights are narrower.
_LAST_PLACE = 2.0**-23
# Of a number's value; one that differs by more from run to run says nothing of others.
_MOST_ROUNDED = 0.01


@dataclass(frozen=True, slots=True)
class Likeness:
    """Whether the changed program gave the same results, and what shows it; its speedup where it was timed.

    Where it `is_timed` and has no speedup, its results are the same, and it is no faster. Where it `is_loose`, rounding
    alone changes the program's results by so much that being within that shows little.
    """

    is_same: bool
    sentence: str
    speedup: Range | None = None
    is_timed: bool = False
    is_loose: bool = False


PrintedNumber = tuple[int, str]  # which of its line, and the text just before it


@dataclass(frozen=True, slots=True)
class _Difference:
    """A number, or all other text of a line, that is not the same in two runs."""

    line: int
    part: int
    before: str
    after: str
    label: str = ""  # the text just before a number

    @property
    def is_number(self) -> bool:
        return self.part >= 0

    @property
    def amount(self) -> float:
        return abs(float(self.after) - float(self.before))

    @property
    def relative(self) -> float:
        return self.amount / max(abs(float(self.before)), 1e-30)


def likeness(
    plain: Run,
    changed: Run,
    again: Run | None = None,
    *,
    captures: bool = True,
    rounds: bool = False,
    varying: frozenset[PrintedNumber] = frozenset(),
) -> Likeness:
    """Compare what two runs print and the weights that they leave.

    `again` is one more run of the program as it is, for what it differs by from itself. `captures`: the change
    captures graphs, so that calls have to have been replayed. `rounds`: the change may round otherwise; the
    weights of `again` were then moved by one unit in the last place after each step, and no number
    may be further off than ten times what that makes of any, or than ten units in the last place. Numbers that are
    `varying` may differ by any amount.
    """
    if reason := _broken(plain, changed):
        return Likeness(False, reason)
    if again is not None and again.failure:
        nudged = ", with its weights moved by one unit in the last place," if rounds else ""
        return Likeness(
            False, f"The program as it is{nudged} failed when it was run again: {again.failure}"
        )
    for name, calls in changed.mostly_eager.items():
        return Likeness(False, _stays_eager(name, calls))
    if captures and not changed.replays:
        return Likeness(False, _no_replay(changed))
    found = _differences(plain, changed)
    different = [each for each in found if (each.part, each.label) not in varying]
    own = _differences(plain, again) if again is not None else []
    least = _last_place(plain) if rounds else 0.0
    beyond = [d for d in different if not _is_like_own(d, own, least, rounds=rounds)]
    if beyond:
        return Likeness(False, _differs(beyond[0], is_own=bool(own)))
    lines = _compared_lines(plain, changed)
    weights = _weights(plain, changed, again, rounds=rounds)
    if not lines and not weights.sentence:
        return Likeness(False, _NOTHING)
    if len(lines) <= plain.lines_before and not weights.sentence:
        return Likeness(False, _NOTHING_SINCE)
    if not weights.is_same:
        return weights
    furthest = _furthest(different)
    printed = _printed(len(lines), len(different), furthest, rounds=rounds) if lines else ""
    clauses = (printed, weights.sentence, _replayed(changed))
    is_loose = weights.is_loose or furthest > _MOST_ROUNDED
    return Likeness(True, f"{'; '.join(filter(None, clauses))}.", is_loose=is_loose)


def with_times(found: Likeness, plain: Sequence[Run], changed: Sequence[Run]) -> Likeness:
    """With the speedup of a step, from runs that took turns; not the same where the change seems no faster."""
    times = _times(plain, changed)
    if times is None:
        return found
    speedup = times.speedup
    steps = "a step takes" if not times.are_late else "in the second half of its steps, one takes"
    figures = (
        f"{steps} {time_text(median(times.eager))} as it is and {time_text(median(times.changed))} changed, "
        f"{ratio_range(speedup)} measured, {count_text(len(times.changed), 'run')} of each in turns."
    )
    if speedup.high < 1.0:
        return Likeness(False, f"The changed program is slower: {figures}", is_timed=True)
    if speedup.mid < 1.0:
        return Likeness(False, f"The change was not shown to be faster: {figures}", is_timed=True)
    return replace(found, sentence=f"{found.sentence.rstrip('.')}; {figures}", speedup=speedup)


def is_decided(plain: Sequence[Run], changed: Sequence[Run]) -> bool:
    """Whether the runs show which program is faster, or more runs would not."""
    times = _times(plain, changed)
    return times is None or times.speedup.low >= 1.0 or times.speedup.high < 1.0


@dataclass(frozen=True, slots=True)
class _Times:
    """Of a step in each run, in microseconds: over the second half of its steps where `are_late`."""

    eager: list[float]
    changed: list[float]
    are_late: bool

    @property
    def speedup(self) -> Range:
        """Of the medians; its bounds are the smallest and the largest of any run of one by any of the other.

        Of many runs, the fastest and the slowest say how the machine was disturbed, and are left out of the bounds.
        """
        few = len(self.eager) < _MANY_RUNS or len(self.changed) < _MANY_RUNS
        eager, fast = (
            sorted(each) if few else sorted(each)[1:-1] for each in (self.eager, self.changed)
        )
        middle = median(self.eager) / median(self.changed)
        return Range(eager[0] / fast[-1], middle, eager[-1] / fast[0])


def _times(plain: Sequence[Run], changed: Sequence[Run]) -> _Times | None:
    """The times of steps after the captures, of which a long program has most, if each run has them."""
    late = [[run.late_step_us for run in runs] for runs in (plain, changed)]
    are_late = all(None not in each for each in late)
    found = late if are_late else [[run.step_us for run in runs] for runs in (plain, changed)]
    eager, fast = ([each for each in times if each is not None] for times in found)
    return _Times(eager, fast, are_late) if eager and fast else None


def needs_another(plain: Run, changed: Run) -> bool:
    """Whether a second run of the program as it is would say more."""
    if _broken(plain, changed):
        return False
    return bool(_differences(plain, changed)) or _deviation(plain, changed) != 0.0


def leave_equal_weights(plain: Run, other: Run) -> bool:
    """Whether two runs took as many steps, and left the same weights bit for bit."""
    has_weights = bool(plain.weights and other.weights) and plain.steps == other.steps
    return has_weights and _deviation(plain, other) == 0.0


def numbers_that_vary(plain: Run, again: Run) -> frozenset[PrintedNumber]:
    """The numbers that differ in two runs of a program with equal weights: nothing that it trains makes them.

    Such as the time of a batch in `BT 0.104`, whose label does not say what it is.
    """
    if not leave_equal_weights(plain, again):
        return frozenset()
    return frozenset((d.part, d.label) for d in _differences(plain, again) if d.is_number)


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
        return (
            "The changed program did not end in time, so nothing says whether its graphs were replayed. Pass more"
            " time, such as `--rerun-limit 10m`."
        )
    return "In the changed program no graph was replayed."


def _stays_eager(name: str, calls: Calls) -> str:
    every = calls.replayed + calls.eager
    replayed = (
        f"only {calls.replayed} of {every} calls of `{name}()` were replayed after the capture"
    )
    if not calls.replayed:
        replayed = f"no call of `{name}()` was replayed"
    return f"In the changed program {replayed}: {calls.reason.rstrip('.')}."


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
    # A longer number, such as of a time, has fewer spaces before it in a column.
    if [text.split() for text in one[::2]] != [text.split() for text in other[::2]]:
        if not ("it/s" in before + after or "s/it" in before + after):
            yield _Difference(line, -1, before, after)
        return
    for part in range(1, len(one), 2):
        if one[part] == other[part]:
            continue
        label = one[part - 1][-_NEAR:]
        if not _OF_TIME.search(f"{label} {one[part + 1][:_NEAR]}"):
            yield _Difference(line, part, one[part], other[part], label)


def _last_place(run: Run) -> float:
    """The share of a value that is one unit in its last place: no rounding is smaller than that."""
    of_weights = (torch.finfo(w.dtype).eps for w in run.weights or () if w.is_floating_point())
    return min(_LAST_PLACE, max(of_weights, default=_LAST_PLACE))


def _is_like_own(
    different: _Difference, own: Sequence[_Difference], least: float, *, rounds: bool
) -> bool:
    """No further from the program's number than the program's own next run was, in this line or one before, or than
    `least` of it.
    """
    if not different.is_number:
        return False
    numbers = [each for each in own if each.is_number]
    # Runs that have drifted apart come near each other again by chance.
    until_here = [
        each.amount
        for each in numbers
        if (each.part, each.label) == (different.part, different.label)
        and each.line <= different.line
    ]
    if until_here and different.amount <= _MOST_WORSE * max(until_here):
        return True
    if not rounds:
        return False
    last_digit = 10.0 ** -len(different.before.partition(".")[2])
    own_scale = (each.relative for each in numbers if each.relative <= _MOST_ROUNDED)
    most = max([least, *own_scale])
    return different.amount < 1.5 * last_digit or different.relative <= _MOST_WORSE * most


def _differs(different: _Difference, *, is_own: bool) -> str:
    where = f"line {different.line} of what the changed program printed"
    instead = f"`{shortened(different.after)}` instead of `{shortened(different.before)}`"
    itself = ", more than the program differs by from itself" if is_own else ""
    return f"In {where} is {instead}{itself}."


def _furthest(differing: Sequence[_Difference]) -> float:
    """The largest difference of a number, relative to the largest that was printed in its place of a line."""
    scales: dict[tuple[int, str], float] = {}
    for each in differing:
        scale = abs(float(each.before))
        scales[each.part, each.label] = max(scale, scales.get((each.part, each.label), 1e-30))
    return max((each.amount / scales[each.part, each.label] for each in differing), default=0.0)


def _printed(lines: int, differing: int, furthest: float, *, rounds: bool) -> str:
    if not differing:
        return f"printed output is identical ({count_text(lines, 'line')}, timings ignored)"
    own = (
        "rounding alone changes, or one unit of the last digit"
        if rounds
        else "two runs of the program as it is differ by"
    )
    return (
        f"printed output is identical ({count_text(lines, 'line')}, timings ignored) except for"
        f" {count_text(differing, 'number')}: off by at most {furthest:.1g} of the largest in that place, within"
        f" {_MOST_WORSE:g} times what {own}"
    )


def _weights(plain: Run, changed: Run, again: Run | None, *, rounds: bool) -> Likeness:
    """A clause on the weights after the last step; "" where there are none to compare."""
    is_over = plain.has_ended and changed.has_ended and plain.steps == changed.steps
    if not is_over or not plain.weights:
        return Likeness(True, "")
    count, off = len(plain.weights), _deviation(plain, changed)
    after = f"after {count_text(plain.steps, 'step')}"
    if off == 0.0:
        return Likeness(True, f"its {count_text(count, 'weight tensor')} {after} are bitwise equal")
    own = _deviation(plain, again) if again is not None else 0.0
    if own > _MOST_OWN and not rounds:
        return Likeness(
            False,
            f"The weights of two runs of the unchanged program {after} differ by {own:.1g} of the largest weight of a"
            " tensor. No comparison shows what the change does to them. Seed each random generator of the program,"
            " such as that of an environment: `env.reset(seed=1)`.",
        )
    most = _MOST_WORSE * (max(own, _last_place(plain)) if rounds else own)
    by_itself = (
        "difference that rounding alone (weights moved by one unit in the last place) makes in the unchanged program"
        if rounds
        else "difference between two runs of the unchanged program"
    )
    accepted = (
        f"differ by {off:.1g} of the largest weight of a tensor; up to {most:.1g} is accepted, which is"
        f" {_MOST_WORSE:g} times the {by_itself}"
    )
    if off > most:
        return Likeness(False, f"The weights of the changed program {after} {accepted}.")
    return Likeness(True, f"its weights {after} {accepted}", is_loose=off > _MOST_ROUNDED)


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
