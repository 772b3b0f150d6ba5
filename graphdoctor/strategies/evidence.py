"""What each stage of one analysis found, which strategies and trace folders build on."""

from __future__ import annotations

from dataclasses import dataclass

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.measure.speed import Speed
from graphdoctor.partition import Plan
from graphdoctor.proof.stage import Captured
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.record import Session
from graphdoctor.values.recording import Recording


@dataclass(frozen=True, slots=True)
class Studied:
    """What is known of a step before anything is captured."""

    session: Session
    recording: Recording
    diagnosis: Diagnosis
    plan: Plan
    ran: EagerRuns | None  # the recorded eager iterations, where their bits tell something


@dataclass(frozen=True, slots=True)
class Evidence(Studied):
    """The same, and what came of capturing, verifying and timing it."""

    captured: Captured
    speed: Speed
