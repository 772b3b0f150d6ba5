"""A target's description in; what a strategy says to it, builds of it, and how its calls compare with eager out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphdoctor.device.open import open_device
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.partition import partition
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.record.session import Session
from graphdoctor.strategies.strategy import Built, Known, Strategy
from graphdoctor.strategies.whole import BuiltStep
from graphdoctor.target import from_object
from graphdoctor.values.captures import Verification
from graphdoctor.values.options import DeviceChoice


@dataclass(frozen=True, slots=True)
class Tried:
    """A warmed-up step, and what the analysis knows of it."""

    session: Session
    known: Known

    def verified(self, built: Built) -> Verification:
        step = BuiltStep(built, self.session)
        step.load(self.session.batches[0])
        step.replay()  # what a call leaves behind is known after the first one only
        return verify_whole_step(
            self.session.target,
            step,
            self.session.batches,
            exact=self.session.device.kind == "emulated",
            now=self.session.start,
        )

    def verdict(self, strategy: Strategy) -> Verification:
        built = strategy.build(self.session, self.known)
        try:
            return self.verified(built)
        finally:
            built.release()


@contextmanager
def tried(
    subject: Callable[[], object], *, iterations: int = 3, choice: DeviceChoice = "emulated"
) -> Iterator[Tried]:
    """`subject` is a function that gives what a target may give."""
    profile = load_profile("h100")
    with open_device(choice, profile) as device:
        target = place(from_object(subject), device)
        try:
            session = prepare(target, device, iterations=iterations)
            recording = record(session, progress=lambda doing: None)
            diagnosis = diagnose(recording)
            plan = partition(recording, diagnosis, profile=profile)
            known = Known(
                mode=recording.mode,
                roots=target.roots,
                findings=tuple(diagnosis.findings),
                safe_modules=plan.safe_modules,
                iteration=recording.captured[-1],
            )
            yield Tried(session, known)
        finally:
            target.close()
