"""The first analysis in a process, which imports the most, leaves the process as it was; a guard imports no dynamo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# torch._dynamo replaces some functions of torch's when it is imported; that stays with the import.
CODE = """
import gc, logging, os, random, signal, sys, threading, traceback, warnings
import numpy, torch, torch.utils._device
import graphdoctor

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        os.environ["FROM_THE_STEP"] = "1"
        sys.path.append("from the step")
        warnings.simplefilter("ignore")
        return torch.relu(self.layer(x))

def look():
    return {
        "random": (random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist()),
        "imports": (list(sys.path), list(sys.meta_path), list(sys.path_hooks), sys.argv),
        "environment": (dict(os.environ), os.getcwd()),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.stdout, sys.stderr),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "interpreter": (sys.getrecursionlimit(), gc.get_threshold(), sys.getprofile(), sys.gettrace()),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
                  torch.get_float32_matmul_precision(), torch.utils._device.CURRENT_DEVICE,
                  torch.are_deterministic_algorithms_enabled(), vars(torch._tensor_str.PRINT_OPTS)),
        "torch.cuda": {name: id(value) for name, value in vars(torch.cuda).items() if callable(value)},
        "Tensor": {name: id(value) for name, value in vars(torch.Tensor).items()},
        "Module": {name: id(value) for name, value in vars(torch.nn.Module).items()},
        "model": (model.training, {name: t.tolist() for name, t in model.state_dict().items()}),
    }

def check(options):
    before = look()
    report = graphdoctor.analyze(model, x, **options)
    after = look()
    assert report.strategies if options["strategies"] is None else not report.strategies
    for name in before:
        assert before[name] == after[name], name

model, x = Model().eval(), torch.randn(4, 8)
assert "torch._dynamo" not in sys.modules
for options in (
    {"strategies": ()},
    {"strategies": None},
    {"strategies": (), "mode": "training"},  # an optimizer imports torch._dynamo, and that sympy
):
    if (child := os.fork()) == 0:
        try:
            check(options)
        except BaseException:
            print(options, traceback.format_exc(), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

from graphdoctor.graphs.guards import Guard
with graphdoctor.EmulatedDevice():
    assert Guard({"model": model}).is_same()
assert "torch._dynamo" not in sys.modules  # a guard takes its compiled checks only where it is imported
"""


def test_the_first_analysis_leaves_the_process_as_it_was() -> None:
    """Each analysis is the first in a fork of a process that has imported torch and analyzed nothing."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
