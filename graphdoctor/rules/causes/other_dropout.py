"""A recording -> attention that drops elements by another kernel while it is captured."""

from __future__ import annotations

from msgspec import Struct

from graphdoctor.rules.causes.words import place_words
from graphdoctor.rules.rule import Hit, once
from graphdoctor.values.recording import HostEvent, Iteration, Recording

WHY_OTHER_DROPOUT = (
    "Each kernel of attention uses random numbers in an order of its own, and the graph holds the kernel of the"
    " capture."
)
FIX_OF_DROPOUT = (
    "Where no batch is padded, pass no attention mask; else one of four dimensions, which both paths keep. With"
    ' Transformers, attn_implementation="eager" or attention without dropout does as well. Where other random numbers'
    " are as good, ignore this finding."
)
_FIX_OF_STRIDES = (
    "Pass an attention mask, of ones where nothing is padded, or give the mask memory of its own (contiguous()): one"
    " number that stands for the whole mask fits no fused kernel. Transformers builds none since 5.23. Where other"
    " random numbers are as good, ignore this finding."
)


class OtherDropout(Struct, frozen=True):
    """One call of attention: how eager asks for it, and how the capture does."""

    iteration: int
    before: HostEvent
    now: HostEvent
    asked: str  # where the code asked whether it is captured, as the end of a sentence

    @property
    def is_certain(self) -> bool:
        """Whether GPUs have shown that these kernels draw differently (two H200s, in float32)."""
        return "math attention" in (self.before.name, self.now.name)

    @property
    def message(self) -> str:
        may = "takes" if self.is_certain else "may take"
        return (
            f"Attention with dropout has {self.now.detail} while it is captured, and {self.before.detail} in"
            f" eager{self.asked}. A GPU {may} {self.now.name} instead of {self.before.name} then, which drops other"
            " elements from the same seed: replays train as validly as eager, but not with its numbers."
        )

    def hit(self) -> Hit:
        return Hit(
            iteration=self.iteration,
            op_index=self.now.op_index,
            message=self.message,
            location=self.now.location,
            stack=self.now.stack,
            module=self.now.module,
            fix=_FIX_OF_STRIDES,
        )


@once
def other_dropouts(recording: Recording) -> tuple[OtherDropout, ...]:
    """All of them, in order."""
    return tuple(
        OtherDropout(captured.index, before, now, _asked_before(now, captured))
        for eager, captured in zip(recording.eager, recording.captured, strict=False)
        for before, now in zip(_attentions(eager), _attentions(captured), strict=False)
        if before.name != now.name
    )


def _attentions(iteration: Iteration) -> list[HostEvent]:
    return [event for event in iteration.events if event.kind == "attention-dropout"]


def _asked_before(now: HostEvent, captured: Iteration) -> str:
    """A helper that does nothing but ask says less than the file that calls it."""
    asked = [
        event
        for event in captured.events
        if event.kind == "capture-query" and event.op_index <= now.op_index
    ]
    if not asked or asked[-1].location is None:
        return ""
    event = asked[-1]
    callers = (one for one in event.stack if one.file != asked[-1].location.file)
    place = place_words(next(callers, event.location), now.location)
    return f", since the code asks {event.name} ({place})" if place else ""
