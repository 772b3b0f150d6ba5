"""PyTorch's scenarios about values, sizes, constants and random numbers, as small targets."""

from __future__ import annotations

import torch
from torch import nn

from tests.steps.making import data


def s01_ten_additions():
    def step(x):
        for _ in range(10):
            x = x + 1
        return x

    return step, (data(),)


def s02_branch_on_being_captured():
    def step(x):
        if torch.cuda.is_current_stream_capturing():
            return torch.add(x, x)
        return x + x

    return step, (data(),)


def s20_dropout_and_rrelu():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.RReLU()).cuda().train(), (data(),)


def s21_distributions():
    def step(x):
        noise = torch.rand(4, 8, device="cuda") + torch.empty_like(x).normal_()
        return x * torch.empty_like(x).bernoulli_(0.5) + noise

    return step, (data(),)


def s22_generator_of_ones_own():
    generator = torch.Generator(device="cuda")

    def step(x):
        return x + torch.rand(4, 8, device="cuda", generator=generator)  # <- GD115

    return step, (data(),)


def s23_seed_in_the_step():
    def step(x):
        torch.manual_seed(3)  # <- GD215
        return x + torch.rand_like(x)

    return step, (data(),)


def s23_another_seed_in_each_step():
    seeds = [1]

    def step(x):
        seeds[0] += 1
        torch.manual_seed(seeds[0])  # <- GD110
        return x + torch.rand_like(x)

    return step, (data(),)


def s25_multinomial():
    def step(x):
        return torch.multinomial(x.abs() + 1, 3, replacement=True), torch.rand(3, device="cuda")

    return step, (data(),)


def s30_item():
    def step(x):
        return x * x.sum().item()  # <- GD101

    return step, (data(),)


def s31_item_returned():
    def step(x):
        return (x * 2).sum().item()  # <- GD101

    return step, (data(),)


def s32_item_between_safe_parts():
    def step(x):
        for _ in range(20):
            x = torch.tanh(x + 1)
        x = x * x.sum().item()  # <- GD101
        for _ in range(20):
            x = torch.tanh(x + 1)
        return x

    return step, (data(),)


def s33_nonzero():
    def step(x):
        return (x * 2).nonzero()  # <- GD106

    return step, (data(),)


def s34_nonzero_twice():
    def step(x):
        rows = (x * 2).nonzero()  # <- GD106
        return rows, (x + 1).nonzero()  # <- GD106

    return step, (data(),)


def s36_values_stored_by_mask():
    def step(x):
        y = x.clone()
        y[x > 0] = torch.zeros((), device="cuda").expand(1)  # <- GD106
        return y

    return step, (data(),)


def s36_a_number_stored_by_mask():
    def step(x):
        y = x.clone()
        y[x > 0] = 0.0
        return y

    return step, (data(),)


def s36_values_stored_at_an_index():
    rows = torch.tensor([0, 2], device="cuda")

    def step(x):
        return x.index_put((rows,), torch.zeros(8, device="cuda"))

    return step, (data(),)


def s37_branch_between_safe_parts():
    def step(x):
        y = torch.tanh(x + 1)
        for _ in range(12):
            y = torch.tanh(y + 1)
        if y.sum() > 0:  # <- GD107
            y = y + 1
        for _ in range(12):
            y = torch.tanh(y + 1)
        return y

    return step, (data(),)


def s38_sparse_tensor():
    places = torch.tensor([[0, 1, 2], [1, 2, 3]], device="cuda")

    def step(x):
        made = torch.sparse_coo_tensor(places, x[0, :3], (4, 8))
        return torch.sparse.mm(made, x.t())  # <- GD114

    return step, (torch.randn(4, 8, device="cuda"),)


def s39_size_from_values():
    def step(x):
        kept = x[x > 0]  # <- GD106
        return torch.tanh(kept + 1).sum()

    return step, (data(),)


def s40_copied_to_the_host():
    def step(x):
        return (x + 1).cpu() * 3  # <- GD103

    return step, (data(),)


def s41_scalar_on_the_cpu():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.tensor(1.0)

        def forward(self, x):
            self.scale.add_(1)
            return x * self.scale  # <- GD211

    return Net(), (data(),)


def s42_one_input_on_the_cpu():
    table = torch.randn(4, 8)

    def step(x):
        return x + table.cuda()  # <- GD104

    return step, (data(),)


def s44_empty_tensor_of_the_cpu():
    def step(x):
        return x + 1, torch.tensor([])

    return step, (data(),)


def s45_unused_input_of_the_cpu():
    unused = torch.ones(3)

    def step(x, other=unused):
        return x + 1

    return step, (data(),)


def s46_scalar_of_the_cpu_moved():
    scale = torch.tensor(2.0)

    def step(x):
        return x * scale.to("cuda")  # <- GD104

    return step, (data(),)


def s46_scalar_of_the_cpu_passed_by_value():
    scale = torch.tensor(2.0)

    def step(x):
        return x * scale

    return step, (data(),)


def s46_scalar_of_the_cpu_changed():
    scale = torch.tensor(2.0)

    def step(x):
        scale.mul_(2)
        return x * scale  # <- GD211

    return step, (data(),)


def s47_work_of_host_and_device_in_turns():
    counts = torch.zeros(3)

    def step(x):
        for _ in range(4):
            x = torch.tanh(x + 1)
            counts.add_(1)  # <- GD209
            x = torch.tanh(x * 2)
        return x

    return step, (data(),)


def s48_meta_tensor():
    def step(x):
        shape = (torch.empty(4, 8, device="meta") + 1).shape
        return x + torch.ones(shape, device="cuda")

    return step, (data(),)


@torch.library.custom_op("graphdoctor_scenarios::shifted", mutates_args=())
def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def s77_custom_operator_of_python():
    return (lambda x: _shifted(x) * 2), (data(),)


def s77_custom_operator_that_waits():
    @torch.library.custom_op("graphdoctor_scenarios::normed", mutates_args=())
    def normed(x: torch.Tensor) -> torch.Tensor:
        return x / x.sum().item()  # <- GD101

    return (lambda x: normed(x) * 2), (data(),)


def s77_custom_operator_of_another_kind():
    def step(x):
        return torch.ops.graphdoctor_scenarios.hidden(x) * 2

    return step, (data(),)


_LIBRARY = torch.library.Library("graphdoctor_scenarios", "FRAGMENT")
_LIBRARY.define("hidden(Tensor x) -> Tensor")
_LIBRARY.impl("hidden", lambda x: x + 1, "CompositeExplicitAutograd")


def s54_constant_of_the_cpu_changed_inside():
    def step(x):
        one = torch.tensor(1)
        one.add_(2)
        return x + one

    return step, (data(),)


def s55_factory():
    def step(x):
        return torch.zeros(8, device="cuda").add_(x)

    return step, (torch.randn(8, device="cuda"),)


def s56_resized_to_a_constant():
    def step(x):
        return x.clone().resize_(20).fill_(2)

    return step, (data(),)


def s57_empty_view_filled():
    def step(x):
        y = x.clone()
        y[0:0].fill_(3)
        return y

    return step, (data(),)


def s62_input_at_an_odd_offset():
    return (lambda x: x + 1), (torch.randn(33, device="cuda")[1:],)


def s63_expanded_input():
    return (lambda x: x + 1), (torch.randn(1, 8, device="cuda").expand(4, 8),)


def s67_sizes_of_inputs_vary():
    sizes = iter(range(8, 1000))

    def inputs():
        return (torch.randn(next(sizes), 8, device="cuda"),)

    class Net(nn.Module):
        def forward(self, x):
            return torch.tanh(x + 1)  # <- GD212

    return Net(), inputs
