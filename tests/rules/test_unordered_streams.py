"""What is said of work that crosses streams."""

from __future__ import annotations

import pytest
from msgspec import structs

from graphdoctor.rules.unordered_streams import UnorderedStreams
from graphdoctor.values.host_events import UnorderedWork
from tests.support.builders import iteration, recording


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        (
            "CUDA error: unjoined work",
            "The step ends while a side stream has unjoined work.",
        ),
        (
            "CUDA error: uncaptured work",
            "Stream.wait_event waits for work from outside the step: uncaptured work.",
        ),
        (
            "CUDA error: legacy stream",
            "Stream.wait_event runs on a stream that did not fork from the step's: legacy stream.",
        ),
    ],
)
def test_the_message_says_what_is_not_ordered(detail: str, message: str) -> None:
    event = UnorderedWork("Stream.wait_event", refusal=detail)
    step = structs.replace(iteration([]), events=(event,))
    (hit,) = UnorderedStreams().check(recording(step))
    assert hit.message == message
