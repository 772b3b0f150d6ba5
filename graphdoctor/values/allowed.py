"""`with graphdoctor.allowed("GD101", reason="..."):` around lines whose findings are wanted. No torch."""

from __future__ import annotations


class allowed:
    """Leave findings of these rules out of the count, for the lines inside of the block.

    `rules` are ids or names, written out as text, since they are read in the source, as comments
    are: nothing happens when the block runs. What the lines call elsewhere is not meant. As with a
    comment, the finding is still shown as suppressed, with the reason, and counts for the verdict.
    """

    __slots__ = ()

    def __init__(self, *rules: str, reason: str) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass
