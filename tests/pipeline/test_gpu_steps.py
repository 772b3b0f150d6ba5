"""Steps that only a real GPU treats otherwise than the emulated device."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import graphdoctor

pytestmark = pytest.mark.gpu


def test_a_graph_of_autograd_that_a_forward_hook_keeps_does_not_prevent_the_capture() -> None:
    """A capture by hand works, too, if its warmup runs on a side stream."""
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
    features = {}
    net[0].register_forward_hook(lambda module, args, out: features.__setitem__("first", out))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(net(x), y) + features["first"].square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (torch.randn(16, 32, device="cuda"), torch.randn(16, 8, device="cuda"))
    state = {"net": net, "optimizer": optimizer}
    target = SimpleNamespace(step=step, inputs=inputs, state=state)
    report = graphdoctor.analyze(lambda: target, strategies=())
    assert report.verdict == "safe", report.reason
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_product_with_a_sparse_matrix_is_analyzed() -> None:
    places = torch.randint(64, (2, 256), device="cuda")
    matrix = torch.sparse_coo_tensor(places, torch.randn(256, device="cuda"), (64, 64)).coalesce()
    linear = nn.Linear(16, 16).cuda()

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(matrix, linear(x))

    target = SimpleNamespace(
        step=step, inputs=(torch.randn(64, 16, device="cuda"),), state={"linear": linear}
    )
    report = graphdoctor.analyze(lambda: target, strategies=())
    assert report.verdict in ("safe", "partly-safe"), report.reason


@pytest.mark.parametrize("size", [32, 600])  # cuSOLVER has a routine for each
def test_a_refused_capture_of_an_eigendecomposition_leaves_eager_working(size: int) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.linalg.eigh(x @ x.T + torch.eye(size, device="cuda")))

    given = torch.randn(size, size, device="cuda")
    report = graphdoctor.analyze(lambda: (step, (given,)), strategies=())
    assert "GD114" in {finding.rule for finding in report.findings}, report.reason
    step(given)
