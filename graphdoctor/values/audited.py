"""What auditing the CUDA graphs of a program gives; plain data, a published JSON schema."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.locations import Location
from graphdoctor.values.program import Ending
from graphdoctor.values.watched import WatchedGraphs

AUDIT_SCHEMA_VERSION = 1
Spacing = int | Literal["auto"]  # of verified replays


class StaleTensor(Struct, frozen=True):
    """A tensor from outside a graph's pool that a replay uses where it was at capture, and is no more.

    `reason`: its memory was `freed`, it was `moved` within its storage object, or its module's
    parameter or buffer was `rebound` to other memory. `name` is the path at capture, "" if nothing
    in the capturing frames led there. `used_at` is the line of the first captured operator that
    used it, `replayed_at` that of the first replay that was wrong, which was number `replay`.
    `changed_at` is the line that put other memory in its place, if that line was seen.
    If only kernels use it that torch does not dispatch, `operator` is the name of the first one. Then `is_written` is
    None, and `used_at` is the line of the library's operator that launched the kernel, None without one.
    """

    reason: Literal["freed", "moved", "rebound"]
    name: str
    shape: tuple[int, ...]
    dtype: str
    operator: str
    is_written: bool | None
    used_at: Location | None
    captured_at: Location | None
    replayed_at: Location | None
    replay: int
    changed_at: Location | None = None


class OverwrittenOutput(Struct, frozen=True):
    """A graph's output that the program keeps as the result of an earlier replay.

    `name` is the container that grows, "" if an operator was seen to read an earlier result; then
    `operator` and `read_at` say which. `kept_at` is the line that got or kept the result. Replay number
    `replay` is the last that wrote over it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    operator: str
    kept_at: Location | None
    read_at: Location | None
    captured_at: Location | None
    replayed_at: Location | None
    replay: int


class FrozenValue(Struct, frozen=True):
    """A Python number, or one in a tensor on the CPU, that a captured operator got and the program changed since.

    `name` is the expression that the number comes from, `captured` and `now` are its values as text.
    `used_at` is the line that handed it to `operator`. `changed_at` is the line that changed it, if seen.
    """

    name: str
    captured: str
    now: str
    operator: str
    used_at: Location | None
    captured_at: Location | None
    replayed_at: Location | None
    replay: int
    changed_at: Location | None = None


class OperatorInput(Struct, frozen=True):
    """A tensor ("float32[4, 4]") or number of an operator. `now`: what it is now, "" if that is the same."""

    name: str
    text: str
    now: str = ""


class WrongReplay(Struct, frozen=True):
    """A replay whose result differs from that of its operators, run eagerly from the same memory.

    `operator` at `used_at` is the first whose result differs. If `frozen`, eager gives the replay's result
    with the memory and the numbers of the capture: an input is something else now. `repeats` says
    whether eager gave the same result twice. `max_abs` is the largest distance of two elements in the
    operator's results, `detail` what a distance does not say.
    """

    operator: str
    used_at: Location | None
    inputs: tuple[OperatorInput, ...]
    max_abs: float
    max_rel: float
    detail: str
    frozen: bool
    repeats: bool
    captured_at: Location | None
    replayed_at: Location | None
    replay: int


class Verified(Struct, frozen=True):
    """What `--verify` compared, and how many captured operators it did not compare.

    `every` is the N of `every=N`, "auto" if the time that comparing takes decides, 0 for `--debug-eager`.
    `replays` were compared, or replaced by eager runs. `random` operators are run and not judged; `unseen` are
    not run: torch does not dispatch a kernel that they depend on. Replays that were not compared: inputs were
    `gone`, or eager `failed`. `unexplained` replays differ, and kernels that were not seen may be the reason.
    """

    every: Spacing
    replays: int = 0
    operators: int = 0
    random: int = 0
    unseen: int = 0
    gone: int = 0
    failed: int = 0
    unexplained: int = 0


class UncopiedInput(Struct, frozen=True):
    """A call that brings a new tensor, while the replay reads the captured one and nothing was copied there.

    `name` is the expression that the capture read the old tensor from. `argument` is the argument that the
    call ignores, "" if the expression itself has the new tensor. `passed_at` is the line of the call, if
    the new tensor came as an argument. `changed_at` is the line that assigned it, if seen.
    """

    name: str
    argument: str
    shape: tuple[int, ...]
    dtype: str
    operator: str
    used_at: Location | None
    captured_at: Location | None
    passed_at: Location | None
    replayed_at: Location | None
    replay: int
    changed_at: Location | None = None


class AuditReport(Struct, frozen=True):
    """An audited program, or block. `graphs` are counted by the line that captured them.

    `ending`, `exit_code` are the program's; of a block in Python, `ending` is "finished".
    """

    schema_version: int
    tool_version: str
    command: tuple[str, ...]
    device: Literal["cuda", "emulated"]
    ending: Ending
    exit_code: int
    audited_graphs: tuple[WatchedGraphs, ...]
    stale_tensors: tuple[StaleTensor, ...]
    overwritten_outputs: tuple[OverwrittenOutput, ...] = ()
    frozen_values: tuple[FrozenValue, ...] = ()
    uncopied_inputs: tuple[UncopiedInput, ...] = ()
    wrong_replays: tuple[WrongReplay, ...] = ()
    verified: Verified | None = None

    @property
    def has_faults(self) -> bool:
        return any(
            (
                self.stale_tensors,
                self.overwritten_outputs,
                self.frozen_values,
                self.uncopied_inputs,
                self.wrong_replays,
            )
        )

    @property
    def replays(self) -> int:
        return sum(each.replays for each in self.audited_graphs)

    @property
    def captures(self) -> int:
        return sum(each.captures for each in self.audited_graphs)
