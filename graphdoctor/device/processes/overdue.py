"""End a rank that a launcher started and that does not end, with a message where each rank was.

Nobody stands above the ranks here, as for those that graphdoctor starts. So a thread of each process writes
where its main thread is, once the time is over, into the store where the ranks meet; the first rank says
what all of them wrote. A model that hangs in C with Python's lock is ended by faulthandler, which needs none.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

import graphdoctor
from graphdoctor.device.processes.launched import rank_and_count, said_by_all
from graphdoctor.target.frames import is_machinery, is_torch
from graphdoctor.values.errors import GraphDoctorError, UserCodeError
from graphdoctor.values.escape import visible_lines

Frame = tuple[str, int, str]  # file, line, function
_OURS = os.path.join(os.path.dirname(graphdoctor.__file__), "")
# Where graphdoctor itself waits for other ranks.
_MEETINGS = tuple(
    os.path.join(_OURS, "device", *path)
    for path in (("observe", "meeting.py"), ("processes", "launched.py"))
)


class Stand(msgspec.Struct, frozen=True):
    """Where the host of one rank is: the innermost line that is the user's, and those that led there."""

    waits: bool  # for others: it is in a collective, or in a meeting of graphdoctor's
    at: str = ""
    frames: str = ""

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> Stand:
        """Of the main thread's frames, innermost first."""
        found = [*frames]
        ours = [n for n, (file, _, _) in enumerate(found) if file.startswith(_OURS)]
        inside = found[: ours[-1]] if ours else found  # behind these is what started graphdoctor
        own = [frame for frame in inside if not is_machinery(frame[0])]
        at = f"{own[0][0]}:{own[0][1]} ({own[0][2]})" if own else ""
        lines = (f'  File "{file}", line {line} in {function}' for file, line, function in own)
        waits = any(
            file.startswith(_MEETINGS) or (is_torch(file) and "distributed" in file)
            for file, _, _ in found
        )
        return cls(waits, at, "\n".join(lines))

    @property
    def words(self) -> str:
        """For a sentence that begins with the rank."""
        if self.waits:
            return f"waited for the others at {self.at}" if self.at else "waited for the others"
        return f"was at {self.at}" if self.at else "was outside the model's own code"


def did_not_end(stands: Mapping[int, Stand], limit_s: float) -> tuple[str, str]:
    """The sentence, those first that others wait for, and the lines where each rank was."""
    ranks = sorted(stands, key=lambda rank: (stands[rank].waits, rank))
    said = ", ".join(f"rank {rank} {stands[rank].words}" for rank in ranks)
    lines = "\n".join(
        f"rank {rank}:\n{stand.frames}" for rank, stand in sorted(stands.items()) if stand.frames
    )
    return f"the ranks did not end within {round(limit_s, 2):g} s: {said}", lines


_STDERR = 2
_GATHERING_S = 5.0  # ranks do not begin at the same moment
_SPEAKING_S = 2.0  # a launcher ends all ranks when the first one ends
_WITHOUT_LOCK_S = 10.0


@contextmanager
def ended_after(time_limit_s: float, *, begun_s: float | None = None) -> Iterator[None]:
    """End this process with a sentence where the block takes longer, if it is one of several ranks.

    The limit counts from `begun_s`, by `time.time()`, or from the block's beginning.
    """
    if rank_and_count()[1] == 1:
        yield
        return
    gone_s = time.time() - begun_s if begun_s is not None else 0.0
    left_s = max(0.0, time_limit_s - gone_s)
    is_over = threading.Event()
    main = threading.get_ident()
    errors = os.dup(_STDERR)  # what runs in the block may put another file there

    def watch() -> None:
        if not is_over.wait(left_s):
            _end(main, time_limit_s, errors)

    watching = threading.Thread(target=watch, daemon=True, name="graphdoctor-limit")
    watching.start()
    faulthandler.dump_traceback_later(left_s + _WITHOUT_LOCK_S, exit=True, file=errors)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        is_over.set()
        watching.join()
        os.close(errors)


def _end(main: int, time_limit_s: float, errors: int) -> None:
    rank, count = rank_and_count()
    stands = {rank: Stand.of(_frames_of(main))}
    # What answers at the address may be another program, to which torch then talks for ever.
    gathering = threading.Thread(target=_gather, args=(stands, rank), daemon=True)
    gathering.start()
    gathering.join(_GATHERING_S + _SPEAKING_S)
    known = dict(stands)
    if rank == min(known):
        message, lines = did_not_end(known, time_limit_s)
        silent = [f"rank {n}" for n in range(count) if n not in known]
        if silent:
            message += f"; {', '.join(silent)} did not say where"
        text = "\n".join(visible_lines(f"graphdoctor: error: {message}\n{lines}".rstrip("\n")))
        with suppress(OSError):
            os.write(errors, f"{text}\n".encode())
    else:
        time.sleep(_SPEAKING_S)
    os._exit(UserCodeError.exit_code)


def _gather(stands: dict[int, Stand], rank: int) -> None:
    """Tell the others where this rank is, and add where they are."""
    mine = msgspec.json.encode(stands[rank]).decode()
    with suppress(GraphDoctorError, RuntimeError):  # there is no store
        said = said_by_all("stand", mine, limit_s=_GATHERING_S)
        stands |= {n: msgspec.json.decode(text, type=Stand) for n, text in said.items()}


def _frames_of(thread: int) -> Iterator[Frame]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
