"""Every variant, by rule and in the order of the files."""

from __future__ import annotations

from tests.rules.advice.branches import BRANCHES
from tests.rules.advice.data import DATA
from tests.rules.advice.draws import DRAWS
from tests.rules.advice.elements import ELEMENTS
from tests.rules.advice.generators import GENERATORS
from tests.rules.advice.gradients import GRADIENTS
from tests.rules.advice.lengths import LENGTHS
from tests.rules.advice.numbers import NUMBERS
from tests.rules.advice.outside import OUTSIDE
from tests.rules.advice.ranks import RANKS
from tests.rules.advice.rates import RATES
from tests.rules.advice.scalers import SCALERS
from tests.rules.advice.state import STATE
from tests.rules.advice.streams import STREAMS
from tests.rules.advice.variant import Variant
from tests.rules.advice.waits import WAITS
from tests.rules.test_advice import PAIRS
from tests.rules.test_advice_in_foreign_code import PAIRS as FOREIGN_PAIRS

TESTED: list[Variant] = [
    *DATA,
    *RATES,
    *DRAWS,
    *STATE,
    *LENGTHS,
    *NUMBERS,
    *WAITS,
    *BRANCHES,
    *OUTSIDE,
    *ELEMENTS,
    *STREAMS,
    *GENERATORS,
    *SCALERS,
    *GRADIENTS,
]
# Those of older tests return other outputs before and after.
_PAIRS = [
    Variant(rule, says, before, says, after, same=False)
    for rule, before, says, after in (*PAIRS, *FOREIGN_PAIRS)
]
# Those of ranks are slow, and the examples of their rules, which are tests, are followed in the same way.
ALL: list[Variant] = sorted([*TESTED, *RANKS, *_PAIRS], key=lambda variant: variant.rule)
