"""What docs/ranks.md says has a test each: a sentence's words -> the test that proves it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMULATED, STARTED, LAUNCHED = (
    "device/test_emulated_ranks.py",
    "check/test_on_ranks.py",
    "cli/test_ranks.py",
)
FAIL, STRATEGIES = "cli/test_ranks_that_fail.py", "cli/test_strategies_on_ranks.py"
PROOFS = {
    "starts the ranks itself, each a process": (
        STARTED,
        "test_ranks_are_started_and_what_they_agree_on_is_said_once",
    ),
    "needs no free port": (STARTED, "test_the_script_may_name_a_port_that_is_not_free"),
    "rank 0 prints one page": (
        LAUNCHED,
        "test_ranks_replay_a_collective_in_step_and_rank_0_prints_for_all",
    ),
    "the verdict is the worst of any rank": (
        LAUNCHED,
        "test_a_hazard_of_one_rank_is_a_hazard_of_the_step_and_says_whose",
    ),
    "that not every rank has says on which it is": (
        LAUNCHED,
        "test_a_hazard_of_one_rank_is_a_hazard_of_the_step_and_says_whose",
    ),
    "Both ways end within `--time-limit`": (
        FAIL,
        "test_a_rank_that_hangs_ends_all_within_the_limit_and_is_told_from_those_that_wait",
    ),
    "leave no process behind": (
        STARTED,
        "test_a_rank_that_hangs_is_ended_with_the_others_and_told_from_them",
    ),
    "So does each diagnosis of": (
        FAIL,
        "test_a_program_whose_diagnosis_hangs_on_one_rank_is_ended",
    ),
    "`on rank 1: running the step failed": (FAIL, "test_an_error_says_on_which_rank_it_was"),
    "raises on the path of a capture only makes the step *unsafe*": (
        STARTED,
        "test_a_step_of_ddp_that_breaks_off_on_one_rank_can_be_run_again_on_all",
    ),
    "its process was ended by SIGKILL": (STARTED, "test_the_rank_that_fails_ends_all_and_is_named"),
    "`did not say where`": (
        FAIL,
        "test_a_port_where_another_program_answers_does_not_keep_ranks_from_their_end",
    ),
    "joined with no others": (
        "device/test_launched_ranks.py",
        "test_reports_of_an_attempt_are_not_joined_with_those_of_the_one_before",
    ),
    "starts all ranks again": (
        "device/test_launched_ranks.py",
        "test_groups_of_an_attempt_do_not_find_what_those_of_the_one_before_left",
    ),
    "works on the [emulated device]": (
        EMULATED,
        "test_a_group_over_nccl_says_so_and_ends_with_the_device",
    ),
    "each rank has the device": (EMULATED, "test_each_rank_has_the_device_of_its_number"),
    "a replay runs them again": (
        EMULATED,
        "test_a_collective_is_an_operator_that_a_replay_runs_again",
    ),
    "is *unknown* at best": (STARTED, "test_one_rank_is_a_world_of_one_of_which_little_is_known"),
    "and a capture refuses it": (EMULATED, "test_asking_whether_a_collective_is_done_is_refused"),
    "`TORCH_NCCL_BLOCKING_WAIT=1`": (
        EMULATED,
        "test_the_wait_for_an_asynchronous_collective_asks_the_device_where_it_blocks",
    ),
    "[GD119](rules/GD119.md), [GD120](rules/GD120.md)": (
        EMULATED,
        "test_a_capture_refuses_what_makes_the_host_wait_for_ranks",
    ),
    "DDP: `no_sync`, `static_graph`": (
        EMULATED,
        "test_a_step_of_ddp_made_on_a_side_stream_is_captured",
    ),
    "the reducer reads on the host which: GD103": (
        EMULATED,
        "test_an_unused_parameter_is_read_on_the_host_and_the_module_works_after_the_refusal",
    ),
    "[GD121](rules/GD121.md)": (EMULATED, "test_ddp_made_on_the_default_stream_is_refused"),
    "[GD121](rules/GD121.md), on a GPU as well": (
        "device/test_data_parallel.py",
        "test_a_module_that_was_made_on_the_default_stream_is_told_of_where_it_takes_gradients",
    ),
    "in a step *unknown*": (
        EMULATED,
        "test_random_numbers_of_a_dtensor_are_drawn_and_what_a_replay_draws_is_unknown",
    ),
    "in that order equals the replays bit for bit": (
        "strategies/test_modules.py",
        "test_gradients_that_a_graph_adds_up_in_its_own_order_are_told_from_an_error",
    ),
    "as busy from when the last rank has come to it": (
        "measure/test_rank_times.py",
        "test_a_collective_works_from_when_the_last_rank_has_come",
    ),
    "Predicted times count them, for the GPU that is there": (
        "estimate/test_network.py",
        "test_a_step_is_longer_by_what_nothing_hides_and_says_what_the_network_takes",
    ),
    "2 (n - 1) / n of its bytes": (
        "estimate/test_network.py",
        "test_the_data_of_an_all_reduce_go_round_twice_and_those_of_a_gather_once",
    ),
    "| between two H200s | predicted | measured |": (
        "estimate/test_network.py",
        "test_collectives_between_two_gpus_are_near_what_they_took",
    ),
    "What needs no result yet runs during a collective": (
        "estimate/test_network.py",
        "test_work_that_needs_no_result_hides_a_collective_and_takes_longer_beside_it",
    ),
    "until something uses its result": (
        "estimate/test_network.py",
        "test_what_needs_a_result_waits_for_it",
    ),
    "is waited for where its future is used": (
        EMULATED,
        "test_who_takes_the_future_of_a_collective_waits_for_it_there",
    ),
    "`send`, `recv`, `batch_isend_irecv`": (STARTED, "test_what_two_gpus_captured_is_safe"),
    "`fully_shard` (FSDP2) with a mesh or without": (
        EMULATED,
        "test_sharding_without_a_mesh_lies_on_the_device",
    ),
    "are freed and gathered again are so in each replay": (
        EMULATED,
        "test_sharded_parameters_are_captured_after_a_single_step",
    ),
    "[GD122](rules/GD122.md), unless": (
        EMULATED,
        "test_a_capture_refuses_a_group_that_nobody_has_used",
    ),
    "Run at least 11 steps on a side stream before the capture": (
        EMULATED,
        "test_a_script_that_does_as_the_page_says_replays_what_eager_computes",
    ),
    "Make the module on a side stream": (
        EMULATED,
        "test_a_script_that_does_as_the_page_says_replays_what_eager_computes",
    ),
    "which counts from the command's beginning": (
        "device/test_processes.py",
        "test_the_limit_may_count_from_before_the_processes_start",
    ),
    "got a `device_id`": (
        EMULATED,
        "test_a_group_that_knows_its_device_has_a_communicator_from_the_start",
    ),
    "which says which rank calls what": (
        STARTED,
        "test_collectives_that_would_hang_are_a_finding_that_says_who_calls_what",
    ),
    "`ranks = 2` of a target": ("pytest_plugin/test_several_ranks.py", ""),
    "equal eager's on each rank": ("captured/test_under_ddp.py", ""),
    "in its first ten steps, and in every hundredth": (
        EMULATED,
        "test_ddp_is_captured_when_it_has_stopped_to_time_itself",
    ),
    "compares [ways to run a step faster]": (STRATEGIES, ""),
    "blocks of as many calls as rank 0 plans": (
        "measure/test_on_ranks.py",
        "test_ranks_run_both_equally_often_and_each_block_is_as_long_as_on_the_slowest",
    ),
    "the launch skew of both": (
        "measure/test_on_ranks.py",
        "test_launch_skew_is_how_much_later_the_last_rank_begins_where_they_share_a_clock",
    ),
    "before anybody waited for it is *unknown*": (
        EMULATED,
        "test_a_tensor_that_nobody_waited_for_leaves_its_user_in_doubt",
    ),
}


@pytest.mark.parametrize("words", PROOFS)
def test_a_sentence_of_the_page_has_its_test(words: str) -> None:
    page = " ".join((ROOT / "docs" / "ranks.md").read_text().split())
    assert words in page
    file, name = PROOFS[words]
    tree = ast.parse((ROOT / "tests" / file).read_text())
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert (name or "test_") in (tests if name else "".join(tests))


@pytest.mark.parametrize("name", ["ranks_predicted_2xh200", "ranks_predicted_2xh200_torch2.11"])
def test_predictions_on_the_page_are_those_of_the_data(name: str) -> None:
    page = (ROOT / "docs" / "ranks.md").read_text()
    data = json.loads((ROOT / f"benchmarks/data/{name}.json").read_text())
    for row in data["rows"]:
        for key in ("eager_us", "graph_us"):
            low, mid, high = (f"{row[key][end] / 1e3:.1f}" for end in ("low", "mid", "high"))
            assert f"{mid} ms ({low} to {high})" in page, row["name"]
        low, mid, high = (f"{row['speedup'][end]:.2f}" for end in ("low", "mid", "high"))
        assert f"{mid} ({low} to {high})" in page, row["name"]
