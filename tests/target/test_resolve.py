"""A file or an object is found as what it describes, and what cannot be is one clear sentence."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from graphdoctor.target import Target, from_object, named_tensors, resolve
from graphdoctor.target.forms import FORMS
from graphdoctor.values.errors import GraphDoctorError, UsageError, UserCodeError
from graphdoctor.values.report import Mode

torch.set_num_threads(1)

HEAD = "import torch\nfrom torch import nn\n"
MODEL = """
class Model(nn.Module):
    def __init__(self, width=4, bias=True):
        super().__init__()
        self.linear = nn.Linear(4, width, bias=bias)
    def forward(self, x):
        return self.linear(x)
"""
SPACE = "from types import SimpleNamespace\n"
INPUTS = "\ndef get_inputs():\n    return [torch.randn(2, 4)]\n"
WHOLE = MODEL + INPUTS
TARGET = "def graphdoctor_target(): "


@pytest.fixture
def found(tmp_path: Path, request: pytest.FixtureRequest):
    """Resolves source text; closes each target at the end of its test."""

    def find(
        source: str, name: str = "", mode: Mode | None = None, inputs: tuple[str, ...] = ()
    ) -> Target:
        path = tmp_path / "mine.py"
        path.write_text(HEAD + textwrap.dedent(source))
        target = resolve(f"{path}{name}", mode=mode, inputs=inputs)
        request.addfinalizer(target.close)
        return target

    return find


def run(target: Target) -> object:
    inputs = target.fresh_inputs()
    return target.step(*inputs.args, **inputs.kwargs)


FORMS_BY_ENTRY = {
    "graphdoctor_target()": MODEL
    + "def graphdoctor_target(): return Model(), (torch.randn(2, 4),)",
    "get_model() + get_inputs()": MODEL + INPUTS + "def get_model(): return Model()",
    "Model + get_inputs()": MODEL + INPUTS,
    "Model.get_module()": """
class Model:
    def __init__(self, test, device, batch_size=None, extra_args=[]):
        self.module = nn.Linear(4, 4).to(device if torch.cuda.is_available() else "cpu")
        assert test == "eval" and batch_size is None
    def get_module(self):
        return self.module, (torch.randn(2, 4),)
""",
    "get_eager_model() + get_example_inputs()": MODEL
    + """
class Entry:
    def get_eager_model(self): return Model()
    def get_example_inputs(self): return (torch.randn(2, 4),)
""",
    "the only nn.Module + --input": MODEL.replace("Model", "Net"),
}


def test_every_form_has_an_example_here() -> None:
    assert list(FORMS_BY_ENTRY) == [form.entry for form in FORMS]


@pytest.mark.parametrize("entry", FORMS_BY_ENTRY)
def test_each_form_is_found_and_runs(found, entry: str) -> None:
    inputs = ("2x4",) if "--input" in entry else ()
    target = found(FORMS_BY_ENTRY[entry], inputs=inputs)
    assert (target.entry, target.mode, target.name) == (entry, "inference", "mine")
    first, second = run(target), run(target)
    assert first.shape == (2, 4) and not first.requires_grad and not torch.equal(first, second)
    assert any(name.startswith("model.") for name in named_tensors(target.roots))


def test_an_earlier_form_wins(found) -> None:
    source = FORMS_BY_ENTRY["get_model() + get_inputs()"]
    assert found(source).entry == "get_model() + get_inputs()"
    source += "\n" + FORMS_BY_ENTRY["graphdoctor_target()"]
    assert found(source).entry == "graphdoctor_target()"


@pytest.mark.parametrize(
    "given", ["[7, False]", "[[7], {'bias': False}]", "{'width': 7, 'bias': False}"]
)
def test_all_forms_of_init_inputs(found, given: str) -> None:
    target = found(MODEL + INPUTS + f"def get_init_inputs(): return {given}")
    assert run(target).shape == (2, 7)
    assert list(named_tensors(target.roots)) == ["model.linear.weight"]


def test_example_inputs_may_be_named(found) -> None:
    source = MODEL + "def get_eager_model(): return Model()\n"
    source += "def get_example_inputs(): return (), {'x': torch.randn(3, 4)}"
    assert run(found(source)).shape == (3, 4)


@pytest.mark.parametrize(
    "returned",
    [
        "Model()",
        "(Model(), (torch.randn(2, 4),))",
        "(Model(), (), {'x': torch.randn(2, 4)})",
        "(lambda x: x * 2, [torch.randn(2, 4)])",
        "SimpleNamespace(step=lambda x: x * 2, inputs=(torch.randn(2, 4),), state=None)",
        "SimpleNamespace(step=Model(), inputs=get_inputs, state={})",
    ],
)
def test_all_shapes_of_a_target(found, returned: str) -> None:
    source = "from types import SimpleNamespace\n" + MODEL + INPUTS
    source += f"def graphdoctor_target(): return {returned}"
    given = ("2x4",) if returned == "Model()" else ()
    assert run(found(source, inputs=given)).shape == (2, 4)


TRAINING = (
    MODEL
    + """
def graphdoctor_target():
    net = Model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    def step(x):
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        seen.append(1)
        return loss
    return step, (torch.randn(2, 4),)
"""
)


def test_a_step_that_trains_is_known_by_its_optimizer(found) -> None:
    target = found(TRAINING)
    assert target.mode == "training" and list(target.roots)[:2] == ["net", "optimizer"]
    assert "net.linear.weight" in named_tensors(target.roots)
    assert "analyzed as inference" in found(TRAINING, mode="inference").notes[0]


def test_state_that_the_user_names_comes_first(found) -> None:
    source = TRAINING.replace(
        "return step, (torch.randn(2, 4),)",
        "return SimpleNamespace(step=step, inputs=(torch.randn(2, 4),), state=[net, optimizer])",
    )
    target = found("from types import SimpleNamespace\n" + source)
    assert list(target.roots)[:2] == ["model", "optimizer"] and "net" not in target.roots


def test_a_step_without_an_optimizer_trains_if_it_calls_backward(found) -> None:
    source = """
    weight = torch.ones(3, requires_grad=True)
    def step(x):
        (weight * x).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None
    def graphdoctor_target(): return step, (torch.ones(3),)
    """
    target = found(source)
    assert target.mode == "training" and "weight" in named_tensors(target.roots)


def test_modules_among_a_steps_arguments_are_roots_and_not_redrawn(found) -> None:
    source = MODEL + "def graphdoctor_target():\n"
    source += "    return (lambda model, x: model(x)), (Model(), torch.randn(2, 4))"
    target = found(source)
    target.fresh_inputs()
    assert target.fresh_inputs().args[0] is target.roots["model"]


def test_inputs_that_the_steps_own_object_holds_are_fresh_all_the_same(found) -> None:
    source = (
        MODEL
        + """
class Trainer:
    def __init__(self):
        self.model = Model()
        self.inputs = (torch.randn(2, 4), self.model.linear.bias)
        self.state = self.model
    def step(self, x, bias): return self.model(x) + bias
graphdoctor_target = Trainer
"""
    )
    target = found(source)
    first, second = target.fresh_inputs().args, target.fresh_inputs().args
    assert not torch.equal(first[0], second[0])
    assert first[1] is second[1] is target.roots["model"].linear.bias


def test_training_a_bare_module_is_wrapped_and_said(found) -> None:
    target = found(FORMS_BY_ENTRY["Model + get_inputs()"], mode="training")
    before = {name: t.detach().clone() for name, t in named_tensors(target.roots).items()}
    run(target)
    assert any("SGD(lr=0.01)" in note for note in target.notes)
    weight = named_tensors(target.roots)["model.linear.weight"]
    assert not torch.equal(weight, before["model.linear.weight"])
    step = 0.01 * weight.grad
    assert torch.allclose(weight, before["model.linear.weight"] - step)


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_train_step_in_the_file_is_used(found, with_optimizer: bool) -> None:
    source = FORMS_BY_ENTRY["Model + get_inputs()"]
    if with_optimizer:
        source += "def get_optimizer(model): return torch.optim.Adam(model.parameters())\n"
        source += "def train_step(model, optimizer, x):\n"
        source += "    model(x).sum().backward(); optimizer.step(); return 1"
    else:
        source += "def train_step(model, x):\n    model(x).sum().backward(); return 1"
    target = found(source)
    assert target.mode == "training" and run(target) == 1
    assert ("optimizer" in target.roots) == with_optimizer
    assert found(source, mode="inference").mode == "inference"


def test_the_training_flag_is_set_only_on_modules_made_here(found) -> None:
    ours = found(FORMS_BY_ENTRY["Model + get_inputs()"])
    assert not ours.roots["model"].training and any("evaluation mode" in n for n in ours.notes)
    theirs = found(FORMS_BY_ENTRY["get_model() + get_inputs()"])
    assert theirs.roots["model"].training and any("left in it" in n for n in theirs.notes)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        (":Model", INPUTS),
        (":instance", INPUTS + "instance = Model()"),
        (":build", "def build(): return Model(), (torch.randn(2, 4),)"),
        (":double", INPUTS + "def double(x): return x * 2"),
        (":held", SPACE + "held = SimpleNamespace(step=lambda x: x, inputs=[torch.randn(2, 4)])"),
        (":pair", "pair = (Model(), (torch.randn(2, 4),))"),
        (":place.inner", INPUTS + SPACE + "place = SimpleNamespace(inner=Model())"),
    ],
)  # fmt: skip
def test_one_object_of_a_file_by_name(found, name: str, extra: str) -> None:
    target = found(MODEL + extra, name=name)
    assert run(target).shape == (2, 4) and target.name == f"mine{name}"


def test_an_object_of_a_module_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somepackage_a"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(HEAD + FORMS_BY_ENTRY["graphdoctor_target()"])
    monkeypatch.chdir(tmp_path)
    target = resolve("somepackage_a.models:graphdoctor_target", mode=None, inputs=())
    assert run(target).shape == (2, 4) and target.file.endswith("models.py")
    target.close()
    assert "somepackage_a.models" not in sys.modules


def test_input_specifications(found) -> None:
    source = "class Net(nn.Module):\n    def forward(self, a, b, c):\n        return a, b, c\n"
    given = ("2x3:float16", "50:int64<30522", "scalar:bool")
    target = found(source, inputs=given)
    a, b, c = run(target)
    assert (a.shape, a.dtype, b.dtype, c.dtype) == ((2, 3), torch.float16, torch.int64, torch.bool)
    assert 10 < int(b.max()) < 30522
    (small,) = found("class Net(nn.Module):\n    def forward(self, a):\n        return a,\n",
                     inputs=("100:int32",)).fresh_inputs().args  # fmt: skip
    assert set(small.tolist()) <= set(range(10)) and small.dtype is torch.int32


@pytest.mark.parametrize(
    "spec",
    ["", "8x", "8,3", "axb", "8:", "8:float99", "8:float32<5", "8:int64<0", "8:int8<300", "8:nn"],
)
def test_wrong_input_specifications_are_refused(found, spec: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        found(MODEL, inputs=(spec,))


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        ("x = 1 +\n", UserCodeError, r"mine.py:3 has a syntax error"),
        ("import absent_xyz\n" + WHOLE, UserCodeError, "importing mine.py failed: ModuleNotF"),
        ("x = 3\n", UsageError, "describes no target"),
        (MODEL, UsageError, "--input 8x3x224x224"),
        (WHOLE.replace("width=4", "width"), UsageError, "missing a required argument: 'width'"),
        (MODEL + "def get_inputs(): return 7\n", UsageError, r"get_inputs\(\) returned .* type int"),
        (MODEL + "def get_inputs(): return None\n", UsageError, r"get_inputs\(\) returned None"),
        ("import sys\nsys.exit(5)\n" + WHOLE, UserCodeError, "ended the interpreter"),
        ("raise KeyboardInterrupt\n" + WHOLE, KeyboardInterrupt, r"^$"),  # Ctrl-C is for graphdoctor
        (TARGET + "return None", UsageError, r"graphdoctor_target\(\) returned None"),
        (TARGET + "return 1, 2", UsageError, r"a tuple of \(int, int\)"),
        (TARGET + "raise ValueError('odd')", UserCodeError, r"target\(\) failed: ValueError: odd"),
        (TARGET + "return graphdoctor_target()", UserCodeError, "recursed without end"),
        (TARGET + "return [0] * 10**18", UserCodeError, "ran out of memory"),
        (MODEL + TARGET + "return Model()", UsageError, "Model takes x, but nothing says"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(found, source: str, kind: type, says: str) -> None:
    before = (list(sys.path), sys.argv, set(sys.modules))
    with pytest.raises(kind, match=says) as caught:
        found(source)
    assert (list(sys.path), sys.argv) == before[:2] and "mine" not in sys.modules
    if kind is UserCodeError:
        assert "mine.py" in caught.value.frames and "graphdoctor/target" not in caught.value.frames
        assert "importlib" not in caught.value.frames and len(caught.value.frames) < 5000


def test_a_file_without_a_target_is_not_run_and_a_template_is_given(found, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        found(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert not (tmp_path / "ran").exists()
    template = str(caught.value).split("\n\n", 1)[1]
    assert "def graphdoctor_target():" in template
    compile(template, "template", "exec")


def test_missing_things_are_named(tmp_path: Path, found) -> None:
    for spec, says in [
        (str(tmp_path / "absent.py"), "does not exist"),
        (str(tmp_path), "is a folder"),
        ("word", "names no target"),
        ("no_such_package_x.models:thing", "there is no module no_such_package_x"),
        ("torch.no_such_x:thing", "there is no module torch.no_such_x"),
        ("torch.nn:Linaer", r"has no Linaer; did you mean 'Linear'\?"),
    ]:
        with pytest.raises(GraphDoctorError, match=says):
            resolve(spec, mode=None, inputs=())
    with pytest.raises(UsageError, match="has no thing; it has Model, "):
        found(MODEL, name=":thing")
    with pytest.raises(UsageError, match=r"has no Modle; .*did you mean 'Model'\?"):
        found(MODEL, name=":Modle")
    with pytest.raises(UsageError, match=r"several modules \(Model, Other\)"):
        found(MODEL + "class Other(Model): pass", inputs=("2x4",))
    with pytest.raises(UsageError, match="Net needs width"):
        source = MODEL.replace("width=4", "width").replace("Model", "Net")
        found(source, inputs=("2x4",))


def test_imports_stay_possible_until_the_target_is_closed(tmp_path: Path) -> None:
    sources = {"a": "1", "b": "2"}
    for folder, value in sources.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lazy_helper.py").write_text(f"VALUE = {value}\n")
        (tmp_path / folder / "mine.py").write_text(
            "import sys\ndef step(x):\n    import lazy_helper\n    return lazy_helper.VALUE\n"
            "def graphdoctor_target():\n    assert __name__ == 'mine' and len(sys.argv) == 1\n"
            "    return step, (1,)\n"
        )
    before = list(sys.path), sys.argv
    values = []
    for folder in sources:
        target = resolve(str(tmp_path / folder / "mine.py"), mode=None, inputs=())
        assert sys.modules["mine"].__file__ == str(tmp_path / folder / "mine.py")
        values.append(run(target))
        target.close()
        target.close()
    assert values == [1, 2] and (list(sys.path), sys.argv) == before
    assert "lazy_helper" not in sys.modules and "mine" not in sys.modules


def test_code_that_says_cuda_runs_on_the_emulated_device(tmp_path: Path) -> None:
    from graphdoctor.device.emulated import EmulatedDevice

    path = tmp_path / "on_cuda.py"
    path.write_text(HEAD + "def get_model(): return nn.Linear(4, 4).cuda()\n"
                    "def get_inputs(): return [torch.randn(2, 4, device='cuda')]\n")  # fmt: skip
    with EmulatedDevice():
        target = resolve(str(path), mode="training", inputs=())
        assert run(target).is_cuda and run(target).is_cuda
        target.close()


def test_objects_from_python() -> None:
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    target = from_object(model, x)
    assert run(target).equal(model(x)) and target.mode == "inference" and target.name == "Linear"
    trained = from_object(model, x, mode="training")
    assert model.training
    trained.close()
    assert not model.training
    built = from_object(lambda: (model, (x,)))
    assert run(built).shape == (2, 4)
    step = from_object(lambda x, scale: x * scale, x, scale=3)
    assert run(step).equal(x * 3)
    held = from_object(SimpleNamespace(step=lambda x: x, inputs=(x,), state=[model]))
    assert run(held).equal(x) and held.roots["model"] is model
    with pytest.raises(UsageError, match="a target is a module"):
        from_object(3)


def test_a_module_that_fails_to_import_lazily_is_asked_for_nothing(found) -> None:
    """As one of transformers' is, where torchvision is missing."""
    lazy = (
        "import sys, types\n"
        "class Lazy(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        raise ModuleNotFoundError(name)\n"
        "sys.modules['lazy_one'] = Lazy('lazy_one')\n"
    )
    try:
        found(lazy + TARGET + "return torch.nn.Linear(2, 2), (torch.ones(1, 2),)").close()
    finally:
        del sys.modules["lazy_one"]
