"""`with graphdoctor.step():` in a program marks what one step is, for `graphdoctor run`."""

from __future__ import annotations

import sys

from graphdoctor.target.program.events import Heard


class Mark:
    """Does nothing where no `graphdoctor run` listens."""

    __slots__ = ()

    def __enter__(self) -> None:
        if Heard.listener is not None:
            Heard.listener.mark(sys._getframe(1))

    def __exit__(self, *exc_info: object) -> None:
        if Heard.listener is not None:
            Heard.listener.unmark()


_MARK = Mark()


def step() -> Mark:
    """Mark the statements of a `with` block as one step of the program.

    `graphdoctor run` then diagnoses these, and no others of that loop. Without it this does nothing.
    """
    return _MARK
