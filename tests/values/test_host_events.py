"""Host events as values: they are saved and read again, and each class says what becomes of its calls."""

from __future__ import annotations

import msgspec
import pytest

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values import host_events
from graphdoctor.values.host_events import AnyEvent, HostEvent, MayBeRefused
from graphdoctor.values.locations import Location
from tests.support.emulated import Seen


def kinds(of: type[HostEvent] = HostEvent) -> list[type[HostEvent]]:
    found = of.__subclasses__()
    return [kind for each in found for kind in (kinds(each) or [each])]


@pytest.mark.parametrize("kind", kinds())
def test_an_event_is_read_again_as_what_it_was(kind: type[HostEvent]) -> None:
    made = kind("called()", 3, Location("model.py", 2), module="layer")
    assert msgspec.json.decode(msgspec.json.encode(made), type=AnyEvent) == made


def test_no_two_kinds_have_one_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in kinds()]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("kind", kinds())
def test_what_makes_the_host_wait_is_refused_in_a_capture(kind: type[HostEvent]) -> None:
    assert kind.is_refused or not kind.host_waits
    assert not (kind.is_refused and issubclass(kind, MayBeRefused))  # one of the two says so


def test_every_call_of_the_device_that_is_watched_has_a_stand_in() -> None:
    """On the emulated device the stand-in of a call tells of it by the same constant."""
    import torch

    seen, tensor = Seen(), torch.ones(2)
    with EmulatedDevice() as device, device.observed_by(seen):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        torch.cuda.synchronize()
        for waits in (stream, event):
            waits.synchronize()
            waits.query()
        event.elapsed_time(event)
        tensor.pin_memory()
        if hasattr(torch, "accelerator"):
            torch.accelerator.synchronize()
    told = {name for _, name in seen.events}
    missing = {call.name for call in host_events.WATCHED_CALLS} - told - {host_events.REPLAY.name}
    assert missing <= ({host_events.ACCELERATOR_SYNCHRONIZE.name} - told)
