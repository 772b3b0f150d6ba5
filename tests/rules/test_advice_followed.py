"""Each variant: its finding and cure, and after the cure no finding, a verified replay, and the same results."""

from __future__ import annotations

import pytest

from tests.rules.advice.all import ALL, TESTED
from tests.rules.advice.variant import Variant
from tests.support.following import failure_of

RULES = ("GD101", "GD102", "GD103", "GD104", "GD105", "GD106", "GD107", "GD108", "GD109", "GD110", "GD111", "GD112",
         "GD114", "GD115", "GD116", "GD117", "GD118", "GD119", "GD120", "GD121", "GD122", "GD201", "GD202", "GD203",
         "GD204", "GD205", "GD206", "GD207", "GD208", "GD209", "GD210", "GD211", "GD212", "GD213", "GD214", "GD215",
         "GD217", "GD218")  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("variant", TESTED, ids=lambda variant: variant.name)
def test_a_step_after_its_cure_is_safe_and_computes_the_same(variant: Variant) -> None:
    assert failure_of(variant) == ""


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_with_a_followed_cure_has_five_variants(rule: str) -> None:
    assert sum(variant.rule == rule for variant in ALL) >= 5
