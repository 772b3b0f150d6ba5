"""The protocol of a step made faster: what it offers so that it can be compared with eager and timed."""

from __future__ import annotations

from typing import Any, Protocol

from graphdoctor.graphs.footprint import Footprint
from graphdoctor.target.state.snapshot import Snapshot
from graphdoctor.target.target import Inputs


class Replayable(Protocol):
    """A step that can be run again and again: a graph of the whole step, or any other way.

    `start` is the state from which its runs are compared with eager's. `footprint` names what the
    last run left behind. `graph` is asked what an emulated graph knows; anything else knows nothing.
    """

    @property
    def start(self) -> Snapshot: ...

    @property
    def footprint(self) -> Footprint: ...

    @property
    def graph(self) -> Any: ...

    def load(self, inputs: Inputs) -> None:
        """Take the values of fresh inputs. Raises `InputMismatch`."""
        ...

    def replay(self) -> None:
        """Run once, on what was loaded and on the state as it is now."""
        ...

    def release(self) -> None:
        """Give the memory of its graphs back."""
        ...
