"""What a graph's memory comes to."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.values.speed import GraphMemory, memory_text

MEMORY = GraphMemory(
    inputs_bytes=1_000, outputs_bytes=200, intermediates_bytes=300, pool_bytes=2_000_000, workspace_bytes=40_000
)  # fmt: skip


def test_a_graph_holds_its_inputs_its_pool_and_the_workspace() -> None:
    assert MEMORY.total_bytes == 2_041_000
    assert replace(MEMORY, measured_bytes=3_000_000).total_bytes == 3_041_000
    assert replace(MEMORY, measured_bytes=0).total_bytes == 41_000


def test_only_a_measured_pool_and_a_workspace_that_there_is_are_told() -> None:
    assert memory_text(MEMORY) == (
        "inputs 1 kB; a pool of 2 MB, for outputs 200 B and intermediate values 300 B at the peak, which the"
        " allocator reserves in blocks of 2 and 20 MB; cuBLAS's workspace 40 kB"
    )
    other = memory_text(replace(MEMORY, measured_bytes=3_000_000, workspace_bytes=0))
    assert "a pool of 2 MB (3 MB measured)" in other
    assert "workspace" not in other
