"""Steps in which the host does more than launch."""

from __future__ import annotations

import collections
import functools
import itertools
import random
import threading
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from odd.step import CUDA, mlp, odd, trained, x8


@odd
def python_random():
    return lambda x: x * random.random(), (x8(),)


@odd
def numpy_round_trip():
    return lambda x: torch.from_numpy(np.sin(x.cpu().numpy())).cuda(), (x8(),)


@odd
def numpy_constant():
    scale = np.float32(0.5)
    return lambda x: x * scale, (x8(),)


@odd
def own_generator():
    generator = torch.Generator(device=CUDA).manual_seed(1)
    return lambda x: x + torch.randn(8, 8, device=CUDA, generator=generator), (x8(),)


@odd
def host_generator():
    generator = torch.Generator().manual_seed(1)
    return lambda x: x * float(torch.rand((), generator=generator)), (x8(),)


@odd
def thread_in_forward():
    def step(x):
        out = []
        worker = threading.Thread(target=lambda: out.append(x * 2))
        worker.start()
        worker.join()
        return out[0] + 1

    return step, (x8(),)


@odd
def caught_sync():
    def step(x):
        try:
            scale = float(x.sum())
        except RuntimeError:
            scale = 1.0
        return x * scale

    return step, (x8(),)


@odd
def asks_whether_captured():
    def step(x):
        if torch.cuda.is_current_stream_capturing():
            return x * 2
        return x * float(x.sum() * 0 + 2)

    return step, (x8(),)


@odd
def asserts_on_device():
    def step(x):
        torch._assert_async((x.abs() < 1e6).all())
        return x * 2

    return step, (x8(),)


@odd
def asserts_on_host():
    def step(x):
        assert torch.isfinite(x).all()
        return x * 2

    return step, (x8(),)


@odd
def memory_asked():
    return lambda x: x * (1 if torch.cuda.memory_allocated() >= 0 else 2), (x8(),)


@odd
def empty_cache_in_step():
    def step(x):
        torch.cuda.empty_cache()
        return x * 2

    return step, (x8(),)


@odd
def nvtx_and_record_function():
    def step(x):
        with torch.profiler.record_function("mine"):
            return x * 2

    return step, (x8(),)


@odd
def side_stream_forked_and_joined():
    side = torch.cuda.Stream()

    def step(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    return step, (x8(),)


@odd
def pinned_copy_to_host():
    host = torch.empty(8, 8).pin_memory()

    def step(x):
        host.copy_(x * 2, non_blocking=True)
        return x + 1

    return step, (x8(),)


@odd
def list_that_grows():
    kept = []

    def step(x):
        kept.append(x.sum())
        return x * 2

    return step, (x8(),)


@odd
def deque_of_losses():
    kept = collections.deque(maxlen=2)

    def step(x):
        kept.append((x * 2).mean())
        return torch.stack(list(kept)).mean()

    return step, (x8(),)


@odd
def state_rebound():
    state = {"h": torch.zeros(8, 8, device=CUDA)}

    def step(x):
        state["h"] = state["h"] * 0.5 + x
        return state["h"]

    return step, (x8(),)


@odd
def state_in_place():
    state = torch.zeros(8, 8, device=CUDA)
    return lambda x: state.mul_(0.5).add_(x), (x8(),), state


@odd
def counter_on_host():
    turns = itertools.count(1)
    return lambda x: x * next(turns), (x8(),)


@odd
def counter_on_device():
    turns = torch.zeros((), device=CUDA)
    return lambda x: x * turns.add_(1), (x8(),), turns


@odd
def cached_by_lru():
    @functools.lru_cache(maxsize=2)
    def table(dtype):
        return torch.arange(8, device=CUDA).to(dtype)

    return lambda x: x + table(x.dtype), (x8(),)


@odd
def stream_priority_and_events():
    ready = torch.cuda.Event()

    def step(x):
        y = x * 2
        ready.record()
        ready.wait()
        return y + 1

    return step, (x8(),)


@odd
def event_timed():
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def step(x):
        begun.record()
        y = x * 2
        ended.record()
        return y

    return step, (x8(),)


@odd
def event_asked():
    done = torch.cuda.Event()

    def step(x):
        y = x * 2
        done.record()
        return y if done.query() else y + 0

    return step, (x8(),)


@odd
def work_in_a_pool_of_threads():
    from concurrent.futures import ThreadPoolExecutor

    pool, model = ThreadPoolExecutor(1), mlp()
    return lambda x: x * 2 + pool.submit(model, x).result(), (x8(),)


@odd
def coroutine():
    import asyncio

    model = mlp()

    async def forward(x):
        await asyncio.sleep(0)
        return model(x)

    return lambda x: asyncio.run(forward(x)), (x8(),)


@odd
def weights_held_on_the_default_stream():
    model = nn.utils.spectral_norm(nn.Linear(8, 8)).cuda()
    model(x8())  # leaves a weight that holds the gradient's accumulation
    return trained(model), (x8(),), model


@odd
def host_generator_state_kept():
    kept = SimpleNamespace(state=None)

    def step(x):
        kept.state = torch.get_rng_state()
        return F.dropout(x)

    return step, (x8(),)
