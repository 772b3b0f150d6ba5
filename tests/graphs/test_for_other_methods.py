"""What `generate()` goes by is not watched where no code of the model brings it into a forward."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from graphdoctor.graphs.guards import Guard


class _Settings:
    __module__ = "transformers.generation.configuration_utils"

    def __init__(self) -> None:
        self.max_new_tokens = 20


class _Library(nn.Module):
    __module__ = "transformers.models.some.modeling_some"
    generation_config: Any


class _Reading(_Library):
    def forward(self) -> int:
        return int(self.generation_config.max_new_tokens)


@pytest.mark.parametrize(("kind", "is_watched"), [(_Library, False), (_Reading, True)])
def test_it_is_watched_where_code_mentions_it(kind: type[_Library], is_watched: bool) -> None:
    model = kind()
    model.generation_config = _Settings()
    guard = Guard({"": model})
    model.generation_config.max_new_tokens = 5
    assert guard.is_same() is not is_watched
    model.generation_config = _Settings()
    assert guard.is_same() is not is_watched
    assert bool(guard.difference()) is is_watched
