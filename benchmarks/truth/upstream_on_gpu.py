"""A script with a step -> what a real capture makes of it: refused, other results than eager, or the same results.

Called by upstream.py --gpu, once for each script, in a process of its own. The script is executed twice, with the
same seeds: one step runs eagerly, the other is captured and replayed, and both go on from step to step. So a number
that the script changes in Python is changed in eager only.
"""

from __future__ import annotations

import json
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from raw_capture import Values, clones, difference, innermost, place_of, tensors_of, words

WARM_UPS = 3
REPLAYS = 4


def seed(value: int) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def loaded(script: Path) -> dict[str, Any]:
    seed(0)
    return runpy.run_path(str(script))


def left_by(script: dict[str, Any], result: object) -> Values:
    """What the step returned, and the state that it may change."""
    modules = [each for each in script.values() if isinstance(each, torch.nn.Module)]
    state = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    return clones([*tensors_of(result), *(each for each in state if each.is_cuda)])


def eager_results(script: dict[str, Any], inputs: list[Values]) -> list[Values]:
    found = []
    for number, given in enumerate(inputs):
        seed(number)
        found.append(left_by(script, script["step"](*given)))
    return found[WARM_UPS:]


def captured_results(script: dict[str, Any], inputs: list[Values]) -> list[Values]:
    static = clones(inputs[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(WARM_UPS):
            copy(static, inputs[number])
            seed(number)
            script["step"](*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph, found = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        result = script["step"](*static)
    for number in range(WARM_UPS, len(inputs)):
        copy(static, inputs[number])
        seed(number)
        graph.replay()
        torch.cuda.synchronize()
        found.append(left_by(script, result))
    return found


def copy(static: Values, given: Values) -> None:
    for old, new in zip(static, given, strict=True):
        old.copy_(new)


def said_of(script: Path) -> str:
    one, other = loaded(script), loaded(script)
    inputs = [clones(list(one["inputs"])) for _ in range(WARM_UPS + REPLAYS)]
    eager = eager_results(one, inputs)
    try:
        captured = captured_results(other, inputs)
    except Exception as error:
        first = innermost(error)
        return f"refused at {place_of(first)}: {words(first)}"
    for number, (mine, theirs) in enumerate(zip(captured, eager, strict=True), 1):
        why, _ = difference(mine, theirs, theirs)
        if why:
            return f"captured, replay {number} differs from eager: {why}"
    return f"captured, {REPLAYS} replays agree with eager"


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here")
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps(about | {"capture": said_of(Path(sys.argv[1]))}))
