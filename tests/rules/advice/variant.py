"""A step with one hazard, the words of its cure, and the same step after the cure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Example = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """`says` is a part of the cure. `same`: both steps return equal values, which steps that draw do not."""

    rule: str
    name: str
    before: Example
    says: str
    after: Example
    same: bool = True


class Variants(list[Variant]):
    """Filled by two decorators, one for each step of a pair."""

    def before(self, rule: str, says: str, *, same: bool = True) -> Callable[[Example], Example]:
        def keep(example: Example) -> Example:
            self._pending = (rule, says, same, example)
            return example

        return keep

    def after(self, example: Example) -> Example:
        rule, says, same, before = self._pending
        self.append(Variant(rule, before.__name__, before, says, example, same))
        return example
