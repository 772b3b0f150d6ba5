"""What each ATen operator does: kernels, host syncs, random numbers, refused captures. Without torch."""

from graphdoctor.operators.conditions import CONDITIONS, call_draws, draws
from graphdoctor.operators.host_syncs import (
    COPIES,
    Transfer,
    host_learns,
    host_waits,
    transfer_of,
    waiting_backwards,
)
from graphdoctor.operators.table import (
    EFFECTS,
    OperatorFact,
    Run,
    Table,
    evidence_words,
    fact_about,
    load_table,
    measured_kernels,
)

__all__ = [
    "CONDITIONS",
    "COPIES",
    "EFFECTS",
    "OperatorFact",
    "Run",
    "Table",
    "Transfer",
    "call_draws",
    "draws",
    "evidence_words",
    "fact_about",
    "host_learns",
    "host_waits",
    "load_table",
    "measured_kernels",
    "transfer_of",
    "waiting_backwards",
]
