"""The pytest plugin, run by pytest itself on small test files."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
from pathlib import Path

import pytest

# Runs within this process forget what they imported, and torch cannot be imported twice.
from graphdoctor.pipeline import analyze  # noqa: F401
from graphdoctor.pytest_plugin import checker  # noqa: F401
from tests.support import warm

PASSING = """
    import pytest, torch

    @pytest.mark.graph_safe(min_coverage=1.0, max_syncs=0)
    def test_net(graphdoctor):
        graphdoctor.check(torch.nn.Linear(4, 4), torch.ones(2, 4))
        assert graphdoctor.report.verdict == "safe"
"""
MODEL = """
    import torch

    class Net(torch.nn.Module):
        def forward(self, x, scale=1):
            if x.sum().item() > 0:
                x = x * scale
            return x + 1
"""
FAILING = """
    import pytest, torch
    from net import Net

    @pytest.mark.graph_safe
    def test_net(graphdoctor):
        graphdoctor.check(Net(), torch.ones(4), scale=3)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty project, whose settings are not those of a folder further up."""
    pytester.mkdir(".git")
    pytester.makepyfile(net=MODEL)
    return pytester


def baseline(project: pytest.Pytester) -> str:
    return (project.path / ".graphdoctor-baseline.json").read_text(encoding="utf-8")


def test_safe_model_passes(project: pytest.Pytester) -> None:
    project.makepyfile(PASSING)
    project.runpytest("--strict-markers").assert_outcomes(passed=1)


def test_failure_reads_like_an_assertion_with_the_code(project: pytest.Pytester) -> None:
    project.makepyfile(FAILING)
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*graphdoctor.check(Net(), torch.ones(4), scale=3)",
            "E *AssertionError: the step is unsafe as a CUDA graph, 1 hazard*",
            "E *GD107 data-dependent-branch: capture fails, confirmed by a trial capture",
            "E *net.py:5",
            "E *> 5 |*if x.sum().item() > 0:",
            "E *Fix: *",
        ],
        consecutive=False,
    )
    assert "pytest_plugin" not in result.stdout.str().split("graphdoctor.check(Net()")[1]


def test_allowed_rule_passes(project: pytest.Pytester) -> None:
    project.makepyfile(FAILING.replace("graph_safe", 'graph_safe(allow=["GD107"])'))
    project.runpytest().assert_outcomes(passed=1)


def test_limit_of_the_marker_fails(project: pytest.Pytester) -> None:
    project.makepyfile(FAILING.replace("graph_safe", 'graph_safe(allow="GD1", max_syncs=0)'))
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *1 wait for the device per step, more than the 0 allowed*"])


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("graph_safe(alow=['GD1'])", "unknown argument 'alow'; the nearest known one is 'allow'*"),
        ("graph_safe(max_sync=0)", "the nearest known one is 'max_syncs'*"),
        ("graph_safe(allow=['GD9'])", "names no rule: 'GD9'*"),
        ("graph_safe(allow=7)", "must be a rule's id or a list of them, not 7*"),
        ("graph_safe('GD1')", "takes its limits by name*"),
        ("graph_safe(min_coverage=90)", "must be a number from 0 to 1, not 90*"),
        ("graph_safe(inputs=['8'])", "has no 'inputs'*"),
    ],
)
def test_wrong_marker_fails_its_test_alone(
    marker: str, sentence: str, project: pytest.Pytester
) -> None:
    project.makepyfile(FAILING.replace("graph_safe", marker) + "\n    def test_other(): pass")
    result = project.runpytest()
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([f"graphdoctor: *test_net*{sentence}"])


def test_marker_without_the_fixture_fails(project: pytest.Pytester) -> None:
    project.makepyfile("import pytest\n@pytest.mark.graph_safe\ndef test_net(): pass")
    result = project.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["graphdoctor: *is marked graph_safe and lacks the argument*"])


def test_what_is_expected_is_allowed_and_fails_once_it_is_gone(project: pytest.Pytester) -> None:
    expecting = 'graph_safe(expect="GD107")'
    path = project.makepyfile(FAILING.replace("graph_safe", expecting))
    project.runpytest().assert_outcomes(passed=1)
    path.write_text(
        path.read_text().replace("Net(), torch.ones(4), scale=3", "torch.nn.ReLU(), torch.ones(4)")
    )
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["GD107 is expected and was not found: drop it*"])


def test_marker_of_a_parameter_adds_to_the_test_s(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest, torch
        from net import Net

        KNOWN = pytest.param(Net, marks=pytest.mark.graph_safe(allow="GD107"))

        @pytest.mark.graph_safe(max_launches=0)
        @pytest.mark.parametrize("make", [torch.nn.ReLU, torch.nn.Tanh, KNOWN])
        def test_many(graphdoctor, make):
            with pytest.raises(AssertionError, match="0 allowed") as error:
                graphdoctor.check(make().cuda(), torch.ones(4).cuda())
            assert "GD107" not in str(error.value)
        """
    )
    project.runpytest().assert_outcomes(passed=3)


def test_cuda_works_without_a_gpu_and_is_gone_afterwards(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest, torch

        @pytest.fixture
        def model():
            return torch.nn.Linear(4, 4).cuda()

        @pytest.mark.graph_safe
        def test_net(graphdoctor, model):
            x = torch.ones(2, 4, device="cuda")
            assert graphdoctor.check(model, x).verdict == "safe"
            assert model(x).is_cuda and not torch.ones(1).is_cuda
            with pytest.raises(AssertionError, match="GD102"):
                graphdoctor.check(lambda x: model(x.cuda()), torch.ones(2, 4))

        def test_other():
            assert not torch.ones(1).is_cuda and torch.cuda.Stream.__module__.startswith("torch")
        """
    )
    project.runpytest("--graphdoctor-device=emulated").assert_outcomes(passed=2)


def test_watching_a_training_step_says_what_it_cannot_see(project: pytest.Pytester) -> None:
    """In a process of its own: Adam imports parts of torch that cannot be imported twice."""
    project.makepyfile(
        """
        import pytest, torch

        def train(model, watching):
            optimizer = torch.optim.Adam(model.parameters())
            with watching:
                loss = model(torch.ones(2, 4, device="cuda")).sum()
                loss.backward()
                optimizer.step()
                loss.item()

        @pytest.mark.graph_safe
        def test_block(graphdoctor):
            train(torch.nn.Linear(4, 4).cuda(), graphdoctor.watch())

        @pytest.mark.graph_safe
        def test_module(graphdoctor):
            model = torch.nn.Linear(4, 4).cuda()
            train(model, graphdoctor.watch(model))
        """
    )
    result = project.run(*warm.command("pytest"))
    result.assert_outcomes(failed=1, passed=1)
    told, _, _ = result.stdout.str().partition("short test summary info")  # where CI has it again
    said = " ".join(told.split())
    assert "watch() checks only the forward of Linear: it did not check the backward pass" in said
    assert "Adam.step() (constructed without capturable=True) in" in said
    assert said.count(".item() in") == 1 and "graphdoctor.check(step, *inputs)" in said


def test_promise_without_a_check_fails(project: pytest.Pytester) -> None:
    project.makepyfile("import pytest\n@pytest.mark.graph_safe\ndef test_net(graphdoctor): pass")
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["marked graph_safe, but it never called graphdoctor.check()"])


def test_model_that_fails_is_told_with_its_own_frames(project: pytest.Pytester) -> None:
    project.makepyfile(FAILING.replace("torch.ones(4), scale=3", "3"))
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["graphdoctor: *AttributeError*", '*net.py", line 5, in forward'])


def test_update_accepts_and_the_next_run_passes(project: pytest.Pytester) -> None:
    path = project.makepyfile(FAILING)
    result = project.runpytest("--graphdoctor-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["updated .graphdoctor-baseline.json"])
    assert f'"target": "{path.name}::test_net"' in baseline(project)
    project.runpytest().assert_outcomes(passed=1)
    net = project.path / "net.py"
    net.write_text(net.read_text().replace("return x + 1", "return x + x.max().item()"))
    linecache.clearcache()  # in another process it would be empty
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *> * |*x.max().item()"])


def test_watch_checks_the_outermost_modules_of_the_block(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest, torch
        from net import Net

        @pytest.mark.graph_safe
        def test_block(graphdoctor):
            safe = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
            with graphdoctor.watch():
                safe(safe(torch.ones(2, 4)))
            assert [r.target.name for r in graphdoctor.reports] == ["Sequential"]
            with pytest.raises(AssertionError, match="GD107"), graphdoctor.watch():
                Net()(torch.ones(4), scale=2)
            with graphdoctor.watch(safe[0]):
                safe(torch.ones(2, 4))
            assert graphdoctor.report.target.name == "Linear"
            with pytest.raises(AssertionError, match="nothing to check"), graphdoctor.watch():
                pass
            with pytest.raises(ZeroDivisionError), graphdoctor.watch():
                1 / 0
        """
    )
    project.runpytest().assert_outcomes(passed=1)


def test_test_is_seeded_and_leaves_the_generators_as_they_were(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import random, torch

        drawn = []

        def test_before():
            torch.manual_seed(5); random.seed(5)
            drawn.append((torch.rand(1).item(), random.random()))
            torch.manual_seed(5); random.seed(5)

        def test_one(graphdoctor):
            drawn.append(torch.rand(1).item())

        def test_two(graphdoctor):
            assert torch.rand(1).item() == drawn[1]

        def test_after():
            assert (torch.rand(1).item(), random.random()) == drawn[0]
        """
    )
    project.runpytest("-p", "no:randomly").assert_outcomes(passed=4)


def test_findings_reach_junit_properties(project: pytest.Pytester) -> None:
    project.makepyfile(FAILING)
    project.runpytest("--junitxml=junit.xml")
    text = (project.path / "junit.xml").read_text(encoding="utf-8")
    finding = "GD107 data-dependent-branch net.py:5 new"
    assert f'<property name="graphdoctor_finding" value="{finding}" />' in text


def test_xdist_writes_reports_and_baseline_once_and_a_wrong_marker_ends_no_run(
    project: pytest.Pytester,
) -> None:
    """Each worker checks some of the tests; the process that started them writes. An xfail hides no mistake."""
    wrong = FAILING.replace("graph_safe", "xfail\n    @pytest.mark.graph_safe(alow=[])")
    project.makepyfile(test_a=FAILING, test_b=PASSING, test_c=wrong)
    result = project.runpytest(*("-n2", "--graphdoctor-update", "--graphdoctor-report=json=r.json"))
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*unknown argument 'alow'*"])
    found = json.loads((project.path / "r.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in found["targets"]] == [
        "test_a.py::test_net",
        "test_b.py::test_net",
    ]
    assert '"target": "test_b.py::test_net"' in baseline(project)
    project.runpytest("test_a.py", "test_b.py").assert_outcomes(passed=2)


@pytest.mark.parametrize("report", ["docx=r", "json", "json=no/such/r"])
def test_report_that_cannot_be_written_is_a_usage_error(
    report: str, project: pytest.Pytester
) -> None:
    project.makepyfile(PASSING)
    result = project.runpytest(f"--graphdoctor-report={report}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --graphdoctor-report: *"])


def test_settings_of_the_project_count(project: pytest.Pytester) -> None:
    project.makepyfile(FAILING)
    (project.path / "graphdoctor.toml").write_text('ignore = ["GD107"]\n')
    project.runpytest().assert_outcomes(passed=1)
    (project.path / "graphdoctor.toml").write_text('ignored = ["GD107"]\n')
    result = project.runpytest()
    assert "nearest known one is 'ignore'" in result.stdout.str() + result.stderr.str()
    assert result.ret != 0


def test_setting_of_values_runs_a_step_on_shapes_only(project: pytest.Pytester) -> None:
    without_limits = PASSING.replace("(min_coverage=1.0, max_syncs=0)", "")
    project.makepyfile(without_limits.replace('verdict == "safe"', 'values == "none"'))
    (project.path / "graphdoctor.toml").write_text('values = "none"\n')
    # In a process of its own: it imports parts of torch that cannot be imported twice.
    project.run(*warm.command("pytest")).assert_outcomes(passed=1)


def test_importing_the_plugin_costs_nothing_but_itself() -> None:
    """It is loaded in every run of pytest: no torch, and nothing else that takes time."""
    code = (
        "import sys, pytest, _pytest.pytester; before = set(sys.modules)\n"
        "import graphdoctor.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    loaded = ["graphdoctor", "graphdoctor.pytest_plugin"]
    assert sorted(done.stdout.split()) == loaded


def test_device_option_is_taken(project: pytest.Pytester) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    project.makepyfile(PASSING)
    result = project.runpytest("--graphdoctor-device=cuda")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["graphdoctor: *GPU*"])
