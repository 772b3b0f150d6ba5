"""A module and its inputs -> a sweep of them, as of a target in a file."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.pipeline import silent
from graphdoctor.sweep.run import sweep
from graphdoctor.target import from_object
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.sweep import Sweep


def sweep_object(
    subject: object, *inputs: object, batches: Sequence[int], options: AnalyzeOptions
) -> Sweep:
    return sweep(
        lambda batch: from_object(subject, *inputs, mode=options.mode), batches, options, silent
    )
