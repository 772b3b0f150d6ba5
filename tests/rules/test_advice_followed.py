"""Each variant: its finding and cure, and after the cure no finding, a verified replay, and the same results."""

from __future__ import annotations

import pytest

from tests.rules.advice.draws import DRAWS
from tests.rules.advice.lengths import LENGTHS
from tests.rules.advice.numbers import NUMBERS
from tests.rules.advice.state import STATE
from tests.rules.advice.variant import Variant
from tests.support.following import failure_of

VARIANTS = [*DRAWS, *LENGTHS, *NUMBERS, *STATE]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_step_after_its_cure_is_safe_and_computes_the_same(variant: Variant) -> None:
    assert failure_of(variant) == ""


def test_a_rule_with_variants_has_five_of_them() -> None:
    counts = {
        rule: sum(one.rule == rule for one in VARIANTS) for rule in {one.rule for one in VARIANTS}
    }
    assert {rule: count for rule, count in counts.items() if count < 5} == {}
