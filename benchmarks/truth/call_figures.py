"""Chains that nobody uses, as `segments` -> what a call of Dynamo's code costs the host in inference.

    python benchmarks/truth/call_figures.py

Reads benchmarks/data/call_costs_h200_torch2.11.jsonl, which `benchmarks/gpu/call_costs.py` wrote, and prints the
figures of a graph, a parameter and a module that leave the least absolute error: one row may be disturbed.
"""

from __future__ import annotations

import json
from itertools import product

from measured_steps import DATA

CALL_COSTS = DATA / "call_costs_h200_torch2.11.jsonl"
_GRAPH_US = tuple(range(30, 111))
_EACH_US = tuple(round(0.02 * number, 2) for number in range(26))


def figures() -> dict[str, float]:
    """By the names of `CallCosts`, in us of that host."""
    rows = [json.loads(line) for line in CALL_COSTS.read_text(encoding="utf-8").splitlines()]
    called = [
        (row["us"]["segments"]["forward"], row["parameters"], row["modules"])
        for row in rows
        if row.get("mode") == "inference" and row["us"]["segments"]["graphs"]
    ]

    def error(costs: tuple[float, float, float]) -> float:
        graph, tensor, module = costs
        return sum(abs(us - graph - tensor * p - module * m) for us, p, m in called)

    least = min(product(_GRAPH_US, _EACH_US, _EACH_US), key=error)
    return dict(zip(("segment", "segment_tensor", "segment_module"), least, strict=True))


if __name__ == "__main__":
    for name, us in figures().items():
        print(f"{name}: {us} us")
