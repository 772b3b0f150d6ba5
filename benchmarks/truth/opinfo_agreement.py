"""What a GPU and the emulated device made of the same samples of op_db -> where they agree, and where not.

python benchmarks/truth/opinfo_capture.py /tmp/emulated.jsonl.gz --device emulated --modes forward
python benchmarks/truth/opinfo_agreement.py benchmarks/data/opinfo_h200_torch2.11.jsonl.gz /tmp/emulated.jsonl.gz
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from build_operator_table import read_lines

_Key = tuple[str, str, int, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("emulated", type=Path)
    options = parser.parse_args()
    measured = _outcomes(read_lines(options.measured))
    emulated = _outcomes(read_lines(options.emulated))
    shared = sorted(measured.keys() & emulated.keys())
    counts = Counter((measured[key], emulated[key]) for key in shared)
    entries = len({key[0] for key in shared})
    print(f"{len(shared)} samples of {entries} entries, called alike on both\n")
    print(f"{'on the GPU':<26}{'emulated':<26}{'samples':>8}")
    for (real, ours), count in sorted(counts.items()):
        print(f"{real:<26}{ours:<26}{count:>8}{'' if real == ours else '  <-'}")
    _print_where((key, measured[key], emulated[key]) for key in shared)


def _outcomes(lines: Iterable[Mapping[str, Any]]) -> dict[_Key, str]:
    found = {}
    for line in lines:
        if "captures" in line:
            key = (line["opinfo"], line["mode"], line["sample"], line["arguments"])
            found[key] = _outcome(line)
    return found


def _outcome(line: Mapping[str, Any]) -> str:
    if not line["captures"]:
        return "refused"
    return "replays wrong" if line.get("replay") == "different" else "captured"


def _print_where(rows: Iterable[tuple[_Key, str, str]]) -> None:
    differing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, real, ours in rows:
        if real != ours:
            differing[real, ours].append(f"{key[0]}[{key[2]}]({key[3][:70]})")
    for (real, ours), where in differing.items():
        print(f"\n{real} on the GPU, {ours} when emulated:")
        print("".join(f"  {each}\n" for each in where), end="")


if __name__ == "__main__":
    main()
