"""`graphdoctor analyze --ranks N`: one page for all ranks, and an end, with a name, whatever one of them does."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.on_ranks import AGREEING, analyzed, words

MODEL = (
    f"""
import os, time
from torch.nn.parallel import DistributedDataParallel
{AGREEING}"""
    + """
def dying():
    return agreeing(lambda: os.kill(os.getpid(), 9))

def raising():
    def bad():
        raise ValueError("bad data")
    return agreeing(bad)

def hanging():
    return agreeing(lambda: time.sleep(1000))

def late():
    if os.environ["RANK"] == "1":
        time.sleep(1000)
    return agreeing()

def leaving():
    if os.environ["RANK"] == "1":
        raise SystemExit(7)
    return agreeing()

def everywhere():
    raise KeyError("weights")

def ported():
    os.environ["MASTER_PORT"] = "1"  # which nobody may take
    return agreeing()

def fewer():
    me = rank()

    def step(x):
        y = x + 1
        if me == 0:
            dist.all_reduce(y)  # the odd one
        return y

    return step, (torch.ones(4, 4, device="cuda"),)

def sizes():
    me = rank()

    def step(x):
        y = x[: 2 + me].clone()
        dist.all_reduce(y)
        return y

    return step, (torch.ones(4, 4, device="cuda"),)

def orders():
    groups = [None, None]
    me = rank()
    groups = [dist.new_group([0, 1]) for _ in range(2)]

    def step(x):
        y = x + 1
        for group in groups if me == 0 else groups[::-1]:
            dist.all_reduce(y, group=group)
        return y

    return step, (torch.ones(4, 4, device="cuda"),)

def subgroups():
    me = rank()
    pairs = [dist.new_group([0]), dist.new_group([1])]

    def step(x):
        y = x + 1
        for _ in range(1 + 2 * me):  # in a group of its own each rank calls what it likes
            dist.all_reduce(y, group=pairs[me])
        dist.all_reduce(y)
        return y

    return step, (torch.ones(4, 4, device="cuda"),)

def refusing():
    me = rank()
    table = torch.randn(6, 4, device="cuda")

    def step(i):
        y = table[i + me * (i.max() > 4)]  # on rank 1 the largest number is out of range
        dist.all_reduce(y)
        return y

    return step, (torch.tensor([0, 3, 5 - me, 1], device="cuda"),)

def barrier_for_one():
    me = rank()

    def step(x):
        if me == 1:
            dist.barrier()
        else:
            dist.all_reduce(x.clone())
        return x + 1

    return step, (torch.ones(4, 4, device="cuda"),)

def half_way(where=lambda n: n == 3):
    me, runs = rank(), []
    with torch.cuda.stream(torch.cuda.Stream()):
        model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())

    def step(x):
        runs.append(x)
        loss = model(x).sum()
        if me == 1 and where(len(runs)):
            raise ValueError("half way")
        loss.backward()

    return step, (torch.ones(4, 4, device="cuda"),)

def half_way_while_captured():
    return half_way(lambda n: torch.cuda.is_current_stream_capturing())

def other_models():
    me = rank()
    with torch.cuda.stream(torch.cuda.Stream()):
        model = DistributedDataParallel(torch.nn.Linear(4, 4 + me).cuda())
    return model, (torch.ones(4, 4, device="cuda"),)

def branch():
    first = rank() == 0

    def step(x):
        y = x * 2
        if first:  # equal collectives between unequal operators
            y = y.tanh() + 1
            dist.all_reduce(y)
        else:
            dist.all_reduce(y)
        return y.relu()

    return step, (torch.ones(4, 4, device="cuda"),)

def pipeline():
    first = rank() == 0
    stage = torch.nn.Linear(4, 4).cuda()

    def step(x):
        if first:
            y = stage(x).detach()
            dist.send(y, 1)
            return y
        y = torch.empty(4, 4, device="cuda")
        dist.recv(y, 0)
        return stage(stage(y))

    return step, (torch.ones(4, 4, device="cuda"),)
"""
)


def page(folder: Path, name: str, *arguments: str, ranks: int = 2, source: str = MODEL) -> str:
    ran = analyzed(folder, source, name, *arguments, ranks=ranks)
    assert ran.returncode == 0, ran.stderr
    return words(ran.stdout)


def error(folder: Path, name: str, *arguments: str) -> str:
    ran = analyzed(folder, MODEL, name, *arguments)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert ran.stdout == ""
    return ran.stderr


def no_process_is_left_in(folder: Path) -> bool:
    def folder_of(process: str) -> str:
        try:
            return os.readlink(f"/proc/{process}/cwd")
        except OSError:
            return ""

    return not any(
        folder_of(entry) == str(folder) for entry in os.listdir("/proc") if entry.isdigit()
    )


def test_ranks_are_started_and_what_they_agree_on_is_said_once(tmp_path: Path) -> None:
    said = page(tmp_path, "agreeing", "--all", "--json", "report.json")
    assert said.startswith("SAFE")
    assert "On all 2 ranks: " in said
    assert "equal to eager (bitwise)" in said
    report = json.loads((tmp_path / "report.json").read_text())
    assert [rank["verdict"] for rank in report["ranks"]] == ["safe", "safe"]
    assert no_process_is_left_in(tmp_path)


def test_three_ranks_are_as_many(tmp_path: Path) -> None:
    assert "On all 3 ranks: " in page(tmp_path, "agreeing", ranks=3)


def test_one_rank_is_a_world_of_one_of_which_little_is_known(tmp_path: Path) -> None:
    said = page(tmp_path, "agreeing", ranks=1)
    assert said.startswith("UNKNOWN")
    assert "run it with --ranks 2" in said


def test_the_script_may_name_a_port_that_is_not_free(tmp_path: Path) -> None:
    assert page(tmp_path, "ported").startswith("SAFE")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dying", "on rank 1: its process was ended by SIGKILL"),
        ("raising", "on rank 1: running the step failed: ValueError: bad data (model.py:29)"),
        ("leaving", "on rank 1: leaving() ended the interpreter with exit code 7"),
        ("half_way", "on rank 1: running the step failed: ValueError: half way"),
        ("everywhere", "on all ranks: everywhere() failed: KeyError: 'weights'"),
        ("other_models", "params[0] in this process with sizes [5, 4] appears not to match"),
    ],
)
def test_the_rank_that_fails_ends_all_and_is_named(tmp_path: Path, name: str, says: str) -> None:
    assert says in error(tmp_path, name)
    assert no_process_is_left_in(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hanging", "(<lambda>), rank 0 waited for the others at "),
        ("late", "(late), rank 0 waited for the others at "),
    ],
)
def test_a_rank_that_hangs_is_ended_with_the_others_and_told_from_them(
    tmp_path: Path, name: str, says: str
) -> None:
    said = error(tmp_path, name, "--time-limit", "6s")
    assert "the ranks did not end within 6 s: rank 1 was at " in said
    assert says in said
    place = re.search(r"rank 1 was at (\S+):(\d+) ", said)
    assert place is not None
    assert "time.sleep(1000)" in Path(place[1]).read_text().splitlines()[int(place[2]) - 1]
    assert no_process_is_left_in(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fewer", "rank 0 calls allreduce(16 float32) at model.py:58, and rank 1 ends the step."),
        ("sizes", "and rank 1 calls allreduce(12 float32) at model.py:68."),
        ("orders", "in group 1, and rank 1 calls allreduce(16 float32) at model.py:81 in group 2."),
        ("barrier_for_one", "and rank 1 calls barrier() at model.py:115."),
    ],
)
def test_collectives_that_would_hang_are_a_finding_that_says_who_calls_what(
    tmp_path: Path, name: str, says: str
) -> None:
    said = page(tmp_path, name)
    assert said.startswith("UNSAFE")
    assert "error[GD216]: " in said
    assert says in said


def test_a_step_of_ddp_that_breaks_off_on_one_rank_can_be_run_again_on_all(tmp_path: Path) -> None:
    """Its reducer stands half way then, which PyTorch's next forward pass is not made for."""
    said = page(tmp_path, "half_way_while_captured")
    assert said.startswith("UNSAFE")
    assert "The step raises where torch.cuda.is_current_stream_capturing() is true." in said
    assert "INTERNAL ASSERT" not in said


@pytest.mark.parametrize("name", ["subgroups", "branch", "pipeline"])
def test_each_rank_captures_its_own_operators_between_equal_collectives(
    tmp_path: Path, name: str
) -> None:
    said = page(tmp_path, name)
    assert said.startswith("SAFE")
    assert "The ranks run different steps: " in said


def test_a_rank_with_another_maximum_is_kept_in_step(tmp_path: Path) -> None:
    assert page(tmp_path, "refusing").startswith("SAFE")


def test_options_that_are_for_one_process_are_refused(tmp_path: Path) -> None:
    ran = analyzed(tmp_path, MODEL, "agreeing", "--trace-dir", "traces")
    assert ran.returncode == 2
    assert "--ranks writes no traces" in ran.stderr


EXAMPLES = """
from graphdoctor.rules.collectives_differ import CollectivesDiffer

bad, good = CollectivesDiffer.bad, CollectivesDiffer.good
"""


def test_the_rule_of_ranks_finds_its_bad_example_on_its_line_and_nothing_in_the_good_one(
    tmp_path: Path,
) -> None:
    ran = analyzed(tmp_path, EXAMPLES, "bad", "--json", "report.json")
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads((tmp_path / "report.json").read_text())["findings"]
    line = Path(found["location"]["file"]).read_text().splitlines()[found["location"]["line"] - 1]
    assert (found["rule"], line.partition("#")[2].strip()) == ("GD216", "<- GD216")
    assert analyzed(tmp_path, EXAMPLES, "good").stdout.startswith("SAFE")


SCENARIOS = Path(__file__).parents[2] / "benchmarks" / "truth" / "ranks_scenarios.py"


@pytest.mark.parametrize(
    "name",
    ["neighbors_send_and_receive", "coalesced_all_reduce", "fsdp", "tensor_parallel"],
)
def test_what_two_gpus_captured_is_safe(tmp_path: Path, name: str) -> None:
    said = page(tmp_path, name, "--all", source=SCENARIOS.read_text())
    assert said.startswith("SAFE")
    assert "equal to eager (bitwise)" in said
