"""An operator -> what a capture makes of it, as the table beside says; without torch."""

from graphdoctor.operators.conditions import CONDITIONS
from graphdoctor.operators.randomness import call_draws, draws
from graphdoctor.operators.table import (
    EFFECTS,
    OperatorFact,
    Run,
    Table,
    evidence_words,
    fact_about,
    load_table,
)

__all__ = [
    "CONDITIONS",
    "EFFECTS",
    "OperatorFact",
    "Run",
    "Table",
    "call_draws",
    "draws",
    "evidence_words",
    "fact_about",
    "load_table",
]
