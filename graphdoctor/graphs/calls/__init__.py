"""Whether a call is the captured one, and what eager would return for it.

`signature` is the key that two calls share when one graph may serve both, and `mismatch` says why they do not;
`CallForm` tells most calls in one call into C++. `Outputs` hands out what a replay filled.
"""

from graphdoctor.graphs.calls.call_form import CallForm, NoForm, form_by, form_of
from graphdoctor.graphs.calls.outputs import Nesting, Outputs
from graphdoctor.graphs.calls.signature import (
    Unwatchable,
    distinct,
    mismatch,
    signature,
)

__all__ = [
    "CallForm",
    "Nesting",
    "NoForm",
    "Outputs",
    "Unwatchable",
    "distinct",
    "form_by",
    "form_of",
    "mismatch",
    "signature",
]
