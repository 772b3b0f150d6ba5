"""From what a user brings to its report, through the stages in `stages.py`."""

from graphdoctor.pipeline.of_program import diagnose_program
from graphdoctor.pipeline.of_target import analyze, analyze_target
from graphdoctor.pipeline.setting import (
    Progress,
    Setting,
    generators_kept,
    open_setting,
    put_back,
    silent,
)
from graphdoctor.pipeline.stages import proven, report_of, study

__all__ = [
    "Progress",
    "Setting",
    "analyze",
    "analyze_target",
    "diagnose_program",
    "generators_kept",
    "open_setting",
    "proven",
    "put_back",
    "report_of",
    "silent",
    "study",
]
