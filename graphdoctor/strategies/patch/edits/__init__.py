"""Every edit that `graphdoctor run --diff` can make, the one that is preferred for a step first."""

from __future__ import annotations

from graphdoctor.strategies.patch.edits.capture_decode import CaptureDecode
from graphdoctor.strategies.patch.edits.capture_generate import CaptureGenerate
from graphdoctor.strategies.patch.edits.capture_model import CaptureModel
from graphdoctor.strategies.patch.edits.capture_returns import CaptureReturns
from graphdoctor.strategies.patch.edits.capture_step import CaptureStep
from graphdoctor.strategies.patch.edits.capture_trainer import CaptureTrainer
from graphdoctor.strategies.patch.edits.edit import Edit
from graphdoctor.strategies.patch.edits.graph_step import GraphStep
from graphdoctor.strategies.patch.edits.static_cache import StaticCache

EDITS: tuple[Edit, ...] = (
    CaptureGenerate(),
    StaticCache(),
    CaptureReturns(),
    CaptureStep(),
    CaptureTrainer(),
    CaptureDecode(with_rows=True),
    CaptureDecode(),
    CaptureModel(),
)
PLAIN_EDITS: tuple[Edit, ...] = (StaticCache(), GraphStep())  # what they write needs no graphdoctor
