"""A worker without a GPU: it does what the model it is asked about is called."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "truth"))

from gpu_workers import serve

ASKED: list[str] = []


def start() -> None:
    if sys.argv[1] == "no GPU":
        raise RuntimeError("No CUDA GPUs are available")


def answer(question: dict[str, Any]) -> tuple[dict[str, Any], str]:
    model = question["model"]
    ASKED.append(model)
    if model == "dies" or (model == "dies after another" and len(ASKED) > 1):
        os.kill(os.getpid(), signal.SIGSEGV)
    if model == "hangs":
        time.sleep(60)
    return {"raw": " after ".join(reversed(ASKED))}, "it says so" if model == "spoils" else ""


if __name__ == "__main__":
    serve(Path(sys.argv[2]), start=start, answer=answer)
