"""`capture()` of a step that decodes: tokens and cache are eager's, also where the cache is full at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice

CALLS = 10
WIDTH, WORDS = 8, 16
Wrap = Callable[[Any], Any]
Mode = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    with EmulatedDevice() if request.param == "emulated" else nullcontext():
        yield


class Cache:
    """As the static cache of transformers: tensors of fixed length, and how far they are filled on the GPU."""

    def __init__(self, places: int) -> None:
        self.filled = torch.zeros((), dtype=torch.long, device="cuda")
        self.layers = [torch.zeros(1, places, WIDTH, device="cuda") for _ in range(2)]
        self.scale = 1.0

    def update(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        if layer == 0:
            self.filled.add_(1)
        self.layers[layer].index_copy_(1, (self.filled - 1)[None], new)
        return self.layers[layer] * self.scale


class Attention(nn.Module):
    """Attends to a cache, or to a buffer of its own that is written at a position."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("kept", torch.zeros(1, places, WIDTH))

    def forward(self, x: torch.Tensor, position: torch.Tensor, keys: torch.Tensor | None) -> Any:
        if keys is None:
            self.kept[:, position] = x
            keys = self.kept
        mask = torch.arange(keys.shape[1], device=x.device) <= position[:, None]
        return nn.functional.scaled_dot_product_attention(
            self.project(x), keys, keys, attn_mask=mask
        )


class Model(nn.Module):
    def __init__(self, places: int = CALLS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Attention(places) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(
        self, token: torch.Tensor, position: torch.Tensor, cache: Cache | None = None
    ) -> torch.Tensor:
        x = self.words(token)
        for number, layer in enumerate(self.layers):
            keys = cache.update(number, x) if cache is not None else None
            x = x + layer(x, position, keys)
        logits: torch.Tensor = self.head(x)[:, -1]
        return logits


def _first() -> torch.Tensor:
    return torch.ones(1, 1, dtype=torch.long, device="cuda")


def cache_as_argument(wrap: Wrap, mode: Mode) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    model = Model().cuda().eval()

    def decode(token: torch.Tensor, position: torch.Tensor, cache: Cache) -> torch.Tensor:
        return model(token, position, cache).argmax(-1, keepdim=True)

    step, tokens = wrap(decode), [_first()]
    with mode():
        cache = Cache(places=CALLS)
        for at in range(CALLS):
            tokens.append(step(tokens[-1], torch.tensor([at], device="cuda"), cache))
    return torch.cat(tokens), [*cache.layers, cache.filled], step


def cache_that_is_returned(wrap: Wrap, mode: Mode) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    """As outputs of transformers have the cache that was passed."""
    model = Model().cuda().eval()

    def decode(token: torch.Tensor, position: torch.Tensor, past: Cache) -> dict[str, Any]:
        return {"logits": model(token, position, past), "past": past}

    step, tokens = wrap(decode), [_first()]
    with mode():
        past = cache = Cache(places=CALLS)
        for at in range(CALLS):
            out = step(tokens[-1], torch.tensor([at], device="cuda"), past)
            tokens.append(out["logits"].argmax(-1, keepdim=True))
            past = out["past"]
    assert past is cache
    return torch.cat(tokens), [*cache.layers, cache.filled], step


def a_list_of_tensors(wrap: Wrap, mode: Mode) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    """What the step writes to is known after two calls."""
    model = Model().cuda().eval()

    def decode(token: torch.Tensor, keys: list[torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        keys[0][:, at] = model.words(token)
        found = model.layers[0](model.words(token), at, keys[0])
        return model.head(found)[:, -1].argmax(-1, keepdim=True)

    step, tokens = wrap(decode), [_first()]
    with mode():
        keys = [torch.zeros(1, CALLS, WIDTH, device="cuda")]
        for at in range(CALLS):
            tokens.append(step(tokens[-1], keys, torch.tensor([at], device="cuda")))
    return torch.cat(tokens), keys, step


def buffers_and_sampling(wrap: Wrap, mode: Mode) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    """As gpt-fast does it: the mode in a decorator, the model as an argument, a position that is counted in place."""
    with mode():
        model = Model().cuda().eval()

    @mode()
    def decode(model: Model, token: torch.Tensor, position: torch.Tensor, **options: float) -> Any:
        logits = model(token, position)
        probabilities = torch.softmax(logits / options["temperature"], -1)
        drawn = torch.empty_like(probabilities).exponential_(1)
        return torch.argmax(probabilities / drawn, -1, keepdim=True), probabilities

    step, tokens = wrap(decode), [_first()]
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    torch.manual_seed(1)
    for _ in range(CALLS):
        token, _ = step(model, tokens[-1], position, temperature=0.8)
        position += 1
        tokens.append(token.clone())
    return torch.cat(tokens), list(model.buffers()), step


def drawn_by_a_distribution(wrap: Wrap, mode: Mode) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    """`Categorical.sample()` calls torch.multinomial, which no host waits for."""
    model = Model().cuda().eval()

    def decode(token: torch.Tensor, position: torch.Tensor) -> Any:
        logits = model(token, position)
        return torch.distributions.Categorical(logits=logits, validate_args=False).sample()[:, None]

    step, tokens = wrap(decode), [_first()]
    torch.manual_seed(1)
    with mode():
        for at in range(CALLS):
            tokens.append(step(tokens[-1], torch.tensor([at], device="cuda")))
    return torch.cat(tokens), list(model.buffers()), step


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        (cache_as_argument, torch.no_grad),
        (cache_as_argument, torch.inference_mode),
        (cache_that_is_returned, torch.inference_mode),
        (a_list_of_tensors, torch.no_grad),
        (buffers_and_sampling, torch.no_grad),
        (buffers_and_sampling, torch.inference_mode),
        (drawn_by_a_distribution, torch.no_grad),
    ],
)
def test_a_loop_that_decodes_gives_eagers_tokens(program: Callable[..., Any], mode: Mode) -> None:
    tokens, kept, _ = program(lambda step: step, mode)

    fast, kept_fast, step = program(graphdoctor.capture, mode)

    assert torch.equal(fast, tokens), step.explain()
    assert all(map(torch.equal, kept_fast, kept))
    first = 5 if program is a_list_of_tensors else 3
    assert step.replayed == CALLS - first, step.explain()
    assert step.plan.mode == "inference"


@torch.no_grad()
def test_another_number_in_the_cache_makes_calls_eager_until_it_is_back() -> None:
    model, cache = Model(places=32).cuda().eval(), Cache(places=32)
    cache.scale = 1  # a float would be an input of the graph

    def decode(token: torch.Tensor, position: torch.Tensor, cache: Cache) -> torch.Tensor:
        return model(token, position, cache)

    step = graphdoctor.capture(decode)
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    for _ in range(5):
        step(_first(), position, cache)
    replayed, cache.scale = step.replayed, 2
    cache.filled.zero_()
    changed = step(_first(), position, cache)

    cache.filled.zero_()
    assert torch.equal(changed, decode(_first(), position, cache))
    assert step.replayed == replayed == 2
    assert any("scale changed from 1 to 2" in reason for reason in step.fallbacks())
    cache.scale = 1
    step(_first(), position, cache)
    assert step.replayed == replayed + 1


@torch.no_grad()
def test_another_number_beside_tensors_that_are_written_is_seen() -> None:
    kept = torch.zeros(4, device="cuda")

    def add(state: tuple[torch.Tensor, float]) -> torch.Tensor:
        state[0].add_(state[1])
        return state[0] * 2

    step = graphdoctor.capture(add)
    found = [step((kept, number)).tolist()[0] for number in [1.0] * 8 + [2.0] * 5]
    assert found == [2.0 * each for each in [*range(1, 9), *range(10, 19, 2)]]
    assert step.replayed == 3 + 2, step.explain()


@torch.inference_mode()
def test_each_cache_gets_a_graph_of_its_own() -> None:
    model = Model(places=32).cuda().eval()

    def decode(token: torch.Tensor, position: torch.Tensor, cache: Cache) -> torch.Tensor:
        return model(token, position, cache)

    step, found = graphdoctor.capture(decode), []
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    for cache in (Cache(places=32), Cache(places=32)):
        found.append([step(_first(), position, cache) for _ in range(6)])
        assert cache.filled.item() == 6

    assert step.plan.graphs_of_step == 2
    assert all(map(torch.equal, *found))


def test_generate_of_transformers_replays_its_forward() -> None:
    """With a cache of the program's own and `get_compiled_call`, where generate() asks for a compiled forward."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).cuda().eval()
    cache = transformers.StaticCache(config=config, max_cache_len=16)
    decode = graphdoctor.capture(model.forward)

    def generated(*, is_captured: bool) -> list[Any]:
        found = []
        for seed in range(2):
            prompt = torch.full((1, 4 + seed), seed + 1, device="cuda")
            given = {"past_key_values": cache} if is_captured else {}
            cache.reset()
            tokens = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=8,
                pad_token_id=0, eos_token_id=None, **given,
            )  # fmt: skip
            found.append(tokens.tolist())
        return found

    expected = generated(is_captured=False)
    model.get_compiled_call = lambda config: decode
    assert generated(is_captured=True) == expected
    assert decode.replayed == 2 * 7 - 3, decode.explain()
