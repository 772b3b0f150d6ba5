"""Code that says "cuda" gets the answers of a GPU, on a machine without one."""

from __future__ import annotations

import copy
import importlib
import io
import math
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.values.errors import GraphDoctorError, UsageError
from tests.support.emulated import Seen, device

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")


def on_cuda(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (2,)), device="cuda")


def test_a_tensor_tells_where_it_is() -> None:
    x = torch.zeros(2, 3).cuda()
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (
        torch.device("cuda", 0), True, False, 0,
    )  # fmt: skip
    host = x.cpu()
    assert (host.device, host.is_cuda, host.is_cpu, host.get_device()) == (
        torch.device("cpu"), False, True, -1,
    )  # fmt: skip


def test_a_copy_to_where_a_tensor_is_is_the_tensor() -> None:
    x = on_cuda()
    assert x.cuda() is x and x.to("cuda") is x and x.to(x.device) is x
    assert x.to("cuda", copy=True) is not x
    assert x.cpu().cpu().is_cpu


@pytest.mark.parametrize("where", ["cuda", "cuda:0", 0, torch.device("cuda")])
def test_factories_put_their_result_where_they_are_told(where: object) -> None:
    made = [
        torch.zeros(2, device=where),
        torch.empty(2, device=where),
        torch.randn(2, device=where),
        torch.full((2,), 1.0, device=where),
        torch.arange(3, device=where),
        torch.eye(3, device=where),
        torch.tensor([1.0], device=where),
        torch.as_tensor(np.ones(2), device=where),
        torch.randperm(3, device=where),
        torch.hann_window(8, device=where),
        torch.fft.fftfreq(8, device=where),
        torch.zeros_like(torch.ones(2), device=where),
        torch.ones(2).new_zeros(2, device=where),
        torch.empty_strided((2, 2), (2, 1), device=where),
    ]
    assert all(x.is_cuda for x in made)
    assert torch.zeros(2).is_cpu


def test_what_is_made_like_a_tensor_lies_beside_it() -> None:
    x = on_cuda()
    made = [
        torch.zeros_like(x), torch.rand_like(x), torch.empty_like(x), torch.full_like(x, 2),
        x.new_zeros(2), x.new_tensor([1.0]), x.new_full((1,), 2.0), x.new_empty(2), x.new(2),
        x.new([1.0, 2.0]), torch.ones(2).to(x), torch.ones(2).type_as(x),
    ]  # fmt: skip
    assert all(each.is_cuda for each in made)
    assert torch.zeros_like(x, device="cpu").is_cpu
    assert x.new_zeros(2, device="cpu").is_cpu


def test_the_default_device_is_followed() -> None:
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
        assert torch.tensor([1.0]).is_cuda
        assert torch.zeros(2, device="cpu").is_cpu
    assert torch.zeros(2).is_cpu
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda
    finally:
        torch.set_default_device(None)


def test_a_module_moves_however_it_is_asked_to() -> None:
    def devices(module: nn.Module) -> set[str]:
        return {t.device.type for t in (*module.parameters(), *module.buffers())}

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert devices(model.to("cuda")) == {"cuda"}
    assert devices(model.cpu()) == {"cpu"}
    assert devices(model.to(device="cuda", dtype=torch.float64)) == {"cuda"}
    assert model[0].weight.dtype == torch.float64
    assert devices(model.half().cpu().cuda()) == {"cuda"}
    assert devices(nn.Linear(2, 2, device="cuda")) == {"cuda"}
    assert devices(nn.Linear(2, 2, device="meta").to_empty(device="cuda")) == {"cuda"}


def test_printing_shows_the_device() -> None:
    assert repr(on_cuda()) == "tensor([1., 1.], device='cuda:0')"
    scalar = torch.ones((), device="cuda", requires_grad=True)
    assert str(scalar) == "tensor(1., device='cuda:0', requires_grad=True)"
    assert f"{scalar:.2f}" == "1.00"


def test_copies_and_saved_tensors_stay_on_the_device() -> None:
    x = on_cuda()
    assert copy.deepcopy(x).is_cuda and copy.copy(x).is_cuda
    assert copy.deepcopy(nn.Linear(2, 2).cuda()).weight.is_cuda
    assert pickle.loads(pickle.dumps(x)).is_cuda
    for saved, target, expected in (
        (x, None, "cuda"),
        (x, "cpu", "cpu"),
        (x, "cuda", "cuda"),
        (x, torch.device("cuda:0"), "cuda"),
        (torch.ones(2), "cuda", "cuda"),
        (torch.ones(2), None, "cpu"),
    ):
        file = io.BytesIO()
        torch.save({"x": saved}, file)
        file.seek(0)
        assert torch.load(file, map_location=target)["x"].device.type == expected


def test_numpy_refuses_device_memory() -> None:
    x = on_cuda()
    for read in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            read()
    assert x.cpu().numpy().sum() == 2
    assert x.numpy(force=True).sum() == 2


def test_reads_of_values_are_seen_as_what_they_are(device: EmulatedDevice) -> None:
    x, scalar = on_cuda(), torch.ones((), device="cuda")
    for read, operator in (
        (lambda: x.tolist(), "_to_copy"),
        (lambda: scalar.item(), "_local_scalar_dense"),
        (lambda: math.isfinite(scalar), "_local_scalar_dense"),
        (lambda: scalar in [scalar * 1], "_local_scalar_dense"),
        (lambda: bool(scalar), "_local_scalar_dense"),
        (lambda: range(scalar.long()), "_local_scalar_dense"),
        (lambda: np.asarray(x.cpu()), "_to_copy"),
    ):
        seen = Seen()
        with device.observed_by(seen):
            read()
        assert operator in seen.calls


def test_pinned_memory_is_host_memory() -> None:
    for pinned in (torch.ones(2).pin_memory(), torch.empty(2, pin_memory=True)):
        assert pinned.is_pinned() and pinned.is_cpu
    assert not torch.ones(2).is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        on_cuda().pin_memory()


def test_legacy_types_work() -> None:
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda and x.type() == "torch.cuda.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.LongTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor(3).dtype == torch.int64
    assert x.type(torch.LongTensor).device.type == "cpu"
    assert torch.ones(2).type("torch.cuda.DoubleTensor").is_cuda
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        assert (
            torch.zeros(2).is_cuda and torch.Tensor([1e10]).is_cuda and torch.Tensor(2, 3).is_cuda
        )
        assert torch.FloatTensor([1.0]).is_cpu and torch.Tensor(x).data_ptr() == x.data_ptr()
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.Tensor([1.0]).is_cpu


def test_the_default_device_says_nothing_of_legacy_constructors() -> None:
    torch.set_default_device("cuda")
    try:
        assert torch.Tensor([1.0]).is_cpu and torch.tensor([1.0]).is_cuda
    finally:
        torch.set_default_device(None)


def test_a_module_moves_to_a_device_that_is_a_number() -> None:
    """As DDP scripts do: model.to(local_rank)."""
    assert torch.nn.Linear(2, 2).to(0).weight.is_cuda
    assert torch.nn.Linear(2, 2).to(device=0, dtype=torch.float64).weight.is_cuda
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.nn.Linear(2, 2).to(3)


def test_generators_belong_to_the_device_and_repeat() -> None:
    generator = torch.Generator(device="cuda")
    assert generator.device.type == "cuda" and torch.Generator().device.type == "cpu"
    assert isinstance(torch.default_generator, torch.Generator)
    generator.manual_seed(3)
    first = torch.rand(2, device="cuda", generator=generator)
    generator.manual_seed(3)
    assert torch.equal(first, torch.rand(2, device="cuda", generator=generator))
    with torch.random.fork_rng():
        inside = torch.rand(2, device="cuda")
    assert torch.equal(inside, torch.rand(2, device="cuda"))


def test_views_and_empty_tensors_stay_where_they_are() -> None:
    x = on_cuda(4, 4)
    views = [
        x.t(), x[1:], x.view(16), x.expand(2, 4, 4), x.as_strided((2,), (1,)), x.detach(),
        x.unfold(0, 2, 1), x.split(2)[0], x.data, x.real, x[0:0], x.resize_(20),
    ]  # fmt: skip
    assert all(view.is_cuda for view in views)
    assert torch.empty(0).cuda().is_cuda and torch.empty(0, device="cuda").cpu().is_cpu


def test_data_and_set_take_the_new_place() -> None:
    model = nn.Linear(2, 2)
    model.weight.data = model.weight.data.cuda()
    assert model.weight.is_cuda
    model.weight.data = torch.ones(2, 2)
    assert model.weight.is_cpu
    assert torch.ones(2).set_(on_cuda()).is_cuda


def test_a_scalar_of_the_host_may_meet_the_device() -> None:
    assert (on_cuda() * torch.tensor(3.0)).is_cuda
    assert (torch.tensor(3.0) * on_cuda()).is_cuda


def test_gradients_cross_devices() -> None:
    w = torch.ones(3, requires_grad=True)
    (w.cuda() * 2).cpu().sum().backward()
    assert w.grad is not None and w.grad.is_cpu and w.grad.tolist() == [2, 2, 2]


def test_complex_sparse_and_nested_tensors_run() -> None:
    spectrum = torch.fft.fft(torch.ones(4, device="cuda"))
    assert torch.view_as_real(spectrum).is_cuda and spectrum.imag.is_cuda
    window = torch.hann_window(16, device="cuda")
    assert torch.stft(on_cuda(100), 16, window=window, return_complex=True).is_cuda
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some layouts beta
        dense = torch.eye(3, device="cuda")
        sparse = dense.to_sparse()
        assert sparse.is_cuda and sparse.coalesce().indices().is_cuda
        assert (sparse @ on_cuda(3, 2)).is_cuda and dense.to_sparse_csr().is_cuda
        made = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device="cuda")
        assert made.is_cuda and made.to_dense().is_cuda
        for layout in (torch.strided, torch.jagged):
            parts = [torch.ones(2), torch.ones(3)]
            nested = torch.nested.nested_tensor(parts, device="cuda", layout=layout)
            assert (nested * 2).is_cuda


def test_functorch_sees_the_device() -> None:
    devices: list[torch.device] = []

    def one(row: torch.Tensor) -> torch.Tensor:
        devices.append(row.device)
        return (row * torch.ones(3, device=row.device)).sin().sum()

    assert torch.func.vmap(one)(on_cuda(2, 3)).is_cuda
    assert torch.func.grad(one)(on_cuda(3)).is_cuda
    assert {each.type for each in devices} == {"cuda"}


def test_compilers_are_passed_by_and_say_so(device: EmulatedDevice) -> None:
    seen = Seen()
    model = nn.Linear(2, 2).cuda()
    with device.observed_by(seen):
        assert torch.compile(model) is model
        traced = torch.jit.trace(model, on_cuda(1, 2))
    assert traced(on_cuda(1, 2)).is_cuda
    assert [kind for kind, _ in seen.events] == ["compile-bypassed"] * 2
    scripted = torch.jit.script(nn.Linear(2, 2).cuda())
    assert scripted(on_cuda(1, 2)).is_cuda


def test_threads_that_begin_inside_see_the_device() -> None:
    found: list[object] = []

    def work() -> None:
        x = torch.ones(2, device="cuda")
        found.extend((x.is_cuda, (x * 2).cpu().is_cpu))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, True]


def test_a_loader_that_pins_memory_works() -> None:
    data = TensorDataset(torch.ones(4, 2))
    for (batch,) in DataLoader(data, batch_size=2, pin_memory=True):
        assert batch.cuda(non_blocking=True).is_cuda


def test_data_parallel_on_one_device_is_the_module() -> None:
    assert nn.DataParallel(nn.Linear(2, 2).cuda())(torch.ones(2, 2)).is_cuda


@pytest.mark.parametrize("where", ["cuda:1", 3])
def test_a_device_that_is_not_there_is_refused(where: object) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(2, device=where)


def test_torch_cuda_answers_as_with_one_gpu() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_summary() == ""
    with torch.cuda.device(0), torch.cuda.device_of(on_cuda()), torch.cuda.nvtx.range("a"):
        pass
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    end.record()
    assert begin.elapsed_time(end) == 0.0
    assert torch.get_device_module("cuda").current_device() == 0


def test_half_precision_kernels_that_the_cpu_lacks_run_wider(device: EmulatedDevice) -> None:
    seen = Seen()
    x = torch.linspace(-1, 1, 8, device="cuda", dtype=torch.float16)
    with device.observed_by(seen):
        y = torch.nn.functional.rrelu(x, training=True)
    assert y.dtype == torch.float16 and y.is_cuda
    assert any("ran in float32" in text for text in seen.fallbacks)


def test_an_operator_without_a_cpu_kernel_gives_zeros_of_its_shape(device: EmulatedDevice) -> None:
    with torch.library._scoped_library("graphdoctor_test", "DEF") as library:
        library.define("gpu_only(Tensor x) -> Tensor")
        library.define("unknown(Tensor x) -> Tensor")
        library.impl("gpu_only", lambda x: x.new_empty(x.shape[0]), "Meta")
        x, seen = on_cuda(3, 2), Seen()
        with device.observed_by(seen):
            y = torch.ops.graphdoctor_test.gpu_only(x)
        assert y.is_cuda and y.tolist() == [0, 0, 0]
        assert "returned zeros of the right shape" in seen.fallbacks[0]
        with pytest.raises(EmulationLimit, match=r"graphdoctor_test\.unknown") as caught:
            try:
                torch.ops.graphdoctor_test.unknown(x)
            except RuntimeError:
                pytest.fail("a limit of the emulator is no error of the model's to handle")
    assert isinstance(caught.value, GraphDoctorError)


def test_an_operator_of_python_is_seen_operator_by_operator(device: EmulatedDevice) -> None:
    @torch.library.custom_op("graphdoctor_test::normed", mutates_args=("count",))
    def normed(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x / x.sum().item() + torch.ones(1, device="cuda")

    x, count, seen = on_cuda(3), torch.zeros(1, device="cuda"), Seen()
    with device.observed_by(seen):
        y = normed(x, count)
    assert y.is_cuda and count.tolist() == [1]
    assert seen.calls == ["add_", "sum", "_local_scalar_dense", "div", "ones", "add"]
    assert seen.fallbacks == []


@pytest.mark.parametrize("kernel", ["CPU", "CompositeExplicitAutograd"])
def test_what_somebody_else_s_kernel_does_is_unknown(device: EmulatedDevice, kernel: str) -> None:
    with torch.library._scoped_library("graphdoctor_test", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, kernel)
        x, seen = on_cuda(3), Seen()
        with device.observed_by(seen):
            torch.ops.graphdoctor_test.doubled(torch.ones(2))
            assert seen.fallbacks == []  # on the host it is no hazard
            assert torch.ops.graphdoctor_test.doubled(x).is_cuda
    assert len(seen.fallbacks) == 1 and "not PyTorch's own" in seen.fallbacks[0]


def test_errors_of_the_model_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        on_cuda(2) + on_cuda(3)


def test_a_second_device_inside_is_refused() -> None:
    with pytest.raises(UsageError, match="emulated already"), EmulatedDevice():
        pass
    assert on_cuda().is_cuda


PARTS: dict[str, Callable[[torch.Tensor], object]] = {
    "linear": lambda x: F.linear(x, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "reshape": lambda x: x.t().reshape(9),
    "item": lambda x: x.sum().item(),
    "one_hot": lambda x: F.one_hot(x[0].long()),
    "repeats": lambda x: x[0].repeat_interleave(x[0].long()),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "loss": lambda x: F.cross_entropy(x, x[0].long()),
    "istft": lambda x: torch.istft(x[:, :2].to(torch.complex64), 4),
    "lstm": lambda x: torch.nn.LSTM(3, 3).cuda()(x),
}


@pytest.mark.parametrize("name", PARTS)
def test_inference_mode_hides_no_operator(device: EmulatedDevice, name: str) -> None:
    """torch hands composite operators on as a whole there: what waits inside of them would be missed."""
    called = []
    for mode in (torch.no_grad, torch.inference_mode):
        seen = Seen()
        torch.manual_seed(0)
        with mode():
            x = on_cuda(3, 3)
            with device.observed_by(seen):
                PARTS[name](x)
        called.append(seen.calls)
    assert called[0] == called[1]


@pytest.mark.parametrize("classes", [-1, 5])
def test_one_hot_makes_its_result_on_the_device(device: EmulatedDevice, classes: int) -> None:
    made = F.one_hot(torch.tensor([[0, 2], [3, 1]]).cuda(), classes)
    assert made.is_cuda and device.table.is_cuda(made)
    known = F.one_hot(torch.tensor([[0, 2], [3, 1]]), classes)
    assert torch.equal(made.cpu(), known)


@pytest.mark.parametrize("classes", [0, -2, -1])
def test_one_hot_refuses_what_torch_refuses(device: EmulatedDevice, classes: int) -> None:
    given = torch.zeros(0 if classes == -1 else 3, dtype=torch.long)
    for indices in (given, given.cuda()):
        with pytest.raises(RuntimeError, match="classes"):
            F.one_hot(indices, classes)


def test_a_seed_is_told_as_the_call_that_was_written(device: EmulatedDevice) -> None:
    seen = Seen()
    with device.observed_by(seen):
        torch.manual_seed(0)
        torch.cuda.manual_seed_all(0)
        torch.cuda.manual_seed(0)
    names = ["torch.manual_seed()", "torch.cuda.manual_seed_all()", "torch.cuda.manual_seed()"]
    assert [name for kind, name in seen.events if kind == "rng-state"] == names


def test_a_class_is_scripted_with_the_names_of_its_own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch.distributed.optim does while it is imported."""
    (tmp_path / "scripted_class.py").write_text(
        "import torch\n"
        "@torch.jit.ignore\n"
        "def twice(x: int) -> int:\n"
        "    return 2 * x\n"
        "@torch.jit.script\n"
        "class Doubled:\n"
        "    def __init__(self, x: int):\n"
        "        self.value = twice(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("scripted_class").Doubled(3).value == 6
