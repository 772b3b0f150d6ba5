"""This machine -> what the work of `graphdoctor calibrate --host` takes here: reference.toml's `took_us`.

    python benchmarks/truth/host_reference.py

How many times as slow as the class `server` that machine is, predictions.py fits to the eager steps of hosts that
were calibrated against it.
"""

from __future__ import annotations

import time

import torch

from graphdoctor.measure.calibrate.host import timed, works

_SECONDS = 5.0


def main() -> None:
    torch.set_num_threads(1)
    for kind, found in timed(works(torch), time.perf_counter, _SECONDS).items():
        print(f"{kind} = {found.least_us:.3g}")


if __name__ == "__main__":
    main()
