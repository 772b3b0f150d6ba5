"""Two small engines, which capture and update as vLLM and SGLang do, and PPO with a captured policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.emulated import captured

WIDTH, PAGE, PAGES, LONGEST = 8, 4, 8, 8


class PagedAttention(nn.Module):
    """Writes keys and values of new tokens to pages, and reads the pages of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False, device="cuda")
        self.out = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
        self.kv_cache = torch.zeros(2, PAGES, PAGE, WIDTH, device="cuda")
        self.scale = WIDTH**-0.5

    def forward(
        self, x: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        for cache, new in zip(self.kv_cache.view(2, -1, WIDTH), (key, value), strict=True):
            cache.index_copy_(0, slots, new)
        keys, values = (cache[pages].flatten(1, 2) for cache in self.kv_cache)
        scores = (keys @ query[..., None]).squeeze(-1) * self.scale
        future = torch.arange(LONGEST, device="cuda") >= lengths[:, None]
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights[:, None] @ values).squeeze(1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH, device="cuda")
        self.layers = nn.ModuleList(PagedAttention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 16, bias=False, device="cuda")
        self.temperature = 0.5

    def forward(self, tokens: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden, *where)
        return self.head(hidden) / self.temperature


class GraphWrapper:
    """In the manner of vLLM: a graph for each size. Who calls it owns the buffers, and passes the same each time."""

    def __init__(self, runnable: nn.Module) -> None:
        self.runnable = runnable
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[int, tuple[Any, torch.Tensor]] = {}

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        size = args[0].size(0)
        if size not in self.graphs:
            self.graphs[size] = captured(lambda: self.runnable(*args), pool=self.pool)
        else:
            self.graphs[size][0].replay()
        return self.graphs[size][1]


class ModelRunner:
    """In the manner of vLLM: buffers for the largest batch, and the pages of all requests in one table."""

    sizes = (4, 2, 1)

    def __init__(self) -> None:
        self.model = Model()
        self.tokens = torch.zeros(4, dtype=torch.long, device="cuda")
        self.slots = torch.zeros(4, dtype=torch.long, device="cuda")
        self.pages = torch.zeros(4, LONGEST // PAGE, dtype=torch.long, device="cuda")
        self.lengths = torch.ones(4, dtype=torch.long, device="cuda")
        self.capture_model()

    def capture_model(self) -> None:
        """Capture each size, the largest first."""
        self.run = GraphWrapper(self.model)
        for size in self.sizes:
            self.run(*self.inputs(size))

    def inputs(self, size: int) -> list[torch.Tensor]:
        """The first rows of the buffers."""
        buffers = (self.tokens, self.slots, self.pages, self.lengths)
        return [buffer[:size] for buffer in buffers]

    def execute_model(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """The next logits of each request, whose tokens so far are in its own pages."""
        count = tokens.size(0)
        first = torch.arange(count, device="cuda") * (LONGEST // PAGE)
        self.tokens[:count].copy_(tokens)
        self.slots[:count].copy_(first * PAGE + position)
        self.pages[:count].copy_(torch.stack([first, first + 1], 1))
        self.lengths[:count].fill_(position + 1)
        size = min(each for each in self.sizes if each >= count)
        return self.run(*self.inputs(size))[:count]

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """New values into the same memory."""
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(weights[name])

    def repack_weights(self) -> None:
        """What a quantized layer does after loading: another parameter of the same name."""
        for layer in self.model.layers:
            layer.qkv.weight = nn.Parameter(layer.qkv.weight * 1.5, requires_grad=False)

    def wake_up(self) -> None:
        """New memory for the cache, as after a sleep that has discarded it."""
        for layer in self.model.layers:
            layer.kv_cache = torch.zeros(2, PAGES, PAGE, WIDTH, device="cuda")


class TokenPool:
    """Keys and values by token, and which tokens a request has."""

    def __init__(self) -> None:
        self.allocate()
        self.of_request = torch.arange(4 * LONGEST, device="cuda").view(4, LONGEST)

    def allocate(self) -> None:
        """Memory for the tokens of all requests, by layer."""
        self.keys = [torch.zeros(4 * LONGEST, WIDTH, device="cuda") for _ in range(2)]
        self.values = [torch.zeros(4 * LONGEST, WIDTH, device="cuda") for _ in range(2)]


class GraphRunner:
    """In the manner of SGLang: a runner whose inputs are attributes, and a pool of tokens that it may give back."""

    sizes = (4, 2)

    def __init__(self) -> None:
        self.pool = TokenPool()
        self.weights = [nn.Linear(WIDTH, 3 * WIDTH, bias=False, device="cuda") for _ in range(2)]
        self.embedding = nn.Embedding(16, WIDTH, device="cuda")
        self.tokens = torch.zeros(4, dtype=torch.long, device="cuda")
        self.requests = torch.arange(4, device="cuda")
        self.lengths = torch.ones(4, dtype=torch.long, device="cuda")
        self.penalty = 1.25
        self.graphs: dict[int, Any] = {}
        self.outputs: dict[int, torch.Tensor] = {}

    def capture(self) -> None:
        """Capture each batch size, the largest first."""
        for size in self.sizes:
            self.graphs[size], self.outputs[size] = captured(lambda n=size: self.forward(n))

    def forward(self, size: int) -> torch.Tensor:
        """The logits of a batch."""
        lengths, hidden = self.lengths[:size], self.embedding(self.tokens[:size])
        places = self.pool.of_request[self.requests[:size]]
        new = places.gather(1, lengths[:, None] - 1).squeeze(1)
        future = torch.arange(LONGEST, device="cuda") >= lengths[:, None]
        for layer, keys, values in zip(self.weights, self.pool.keys, self.pool.values, strict=True):
            query, key, value = layer(hidden).chunk(3, -1)
            keys.index_copy_(0, new, key)
            values.index_copy_(0, new, value)
            scores = (keys[places] @ query[..., None]).squeeze(-1)
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            hidden = hidden + (weights[:, None] @ values[places]).squeeze(1)
        return hidden @ self.embedding.weight.t() / self.penalty

    def replay(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        """The logits of a batch whose requests have so many tokens."""
        count = tokens.size(0)
        size = min(each for each in self.sizes if each >= count)
        self.tokens[:count].copy_(tokens)
        self.lengths[:count].fill_(length)
        self.graphs[size].replay()
        return self.outputs[size][:count]

    def replay_prepared(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same for tokens that are said to be in the buffers."""
        self.graphs[tokens.size(0)].replay()
        return self.outputs[tokens.size(0)]

    def update_weights(self, weights: list[torch.Tensor]) -> None:
        """Values from a trainer, into the same memory."""
        for layer, weight in zip(self.weights, weights, strict=True):
            layer.weight.data.copy_(weight)


class Ppo:
    """A policy that acts in a graph; a learner trains another one, from which it gets its weights."""

    def __init__(self) -> None:
        self.policy, self.learner = self._network(), self._network()
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=0.01)
        self.observation = torch.zeros(4, 3, device="cuda")
        self.noise = 0.5
        self.graph, self.action = captured(lambda: self.act())

    def _network(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)).to("cuda")

    def act(self) -> torch.Tensor:
        """Actions with a fixed spread."""
        mean: torch.Tensor = self.policy(self.observation)
        return mean.tanh() + self.noise

    def step(self, observation: torch.Tensor) -> torch.Tensor:
        """The action for an observation."""
        self.observation.copy_(observation)
        self.graph.replay()
        return self.action

    def step_in_place(self, observation: torch.Tensor) -> torch.Tensor:
        """The same for an environment that is said to write to the captured observation."""
        self.graph.replay()
        return self.action

    @torch.enable_grad()
    def learn(self, observations: torch.Tensor, actions: torch.Tensor) -> None:
        """A step of the learner."""
        self.optimizer.zero_grad()
        (self.learner(observations) - actions).square().mean().backward()
        self.optimizer.step()
