"""GD102, GD103 and GD108: prints, copies and timers for which the CPU waits."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

WAITS = Variants()

PRINTED = "Return the tensor from the step, and print it outside, after the replay."
COPIED = "Do this computation on the GPU, or return the tensor and copy it after the replay."
WAITED = "Move the call outside the step."


@WAITS.before("GD102", PRINTED)
def loss_in_an_f_string():
    def step(x, y):
        loss = F.mse_loss(x, y)
        print(f"loss: {loss:.4f}")
        return loss

    return step, (cuda(8, 4), cuda(8, 4))


@WAITS.after
def loss_returned():
    def step(x, y):
        return F.mse_loss(x, y)

    return step, (cuda(8, 4), cuda(8, 4))


class Layer(nn.Module):
    """A layer that prints nothing."""

    def forward(self, x):
        return x


class PrintLayer(Layer):
    def forward(self, x):
        print(x, x.shape)
        return x


def _between(layer: nn.Module) -> object:
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.ReLU()).cuda()
    nn.init.constant_(model[0].weight, 0.5)
    nn.init.zeros_(model[0].bias)
    return model, (cuda(8, 4),)


@WAITS.before("GD102", PRINTED)
def layer_that_prints():
    return _between(PrintLayer())


@WAITS.after
def layer_that_prints_nothing():
    return _between(Layer())


@WAITS.before("GD102", PRINTED)
def statistics_in_format():
    def step(x):
        mean, std = x.mean(), x.std()
        print("mean {:.2f} std {:.2f}".format(mean, std))  # noqa: UP032
        return (x - mean) / std, mean, std

    return step, (cuda(8, 4),)


@WAITS.after
def statistics_returned():
    def step(x):
        mean, std = x.mean(), x.std()
        return (x - mean) / std, mean, std

    return step, (cuda(8, 4),)


@WAITS.before("GD102", PRINTED)
def text_of_a_tensor():
    def step(x):
        scores = x.softmax(1)
        "\n".join(str(scores).splitlines())
        return scores

    return step, (cuda(8, 4),)


@WAITS.after
def scores_without_text():
    def step(x):
        return x.softmax(1)

    return step, (cuda(8, 4),)


@WAITS.before("GD102", PRINTED)
def dict_of_losses_printed():
    def step(x, y):
        losses = {"l1": F.l1_loss(x, y), "l2": F.mse_loss(x, y)}
        print(losses)
        return losses

    return step, (cuda(8, 4), cuda(8, 4))


@WAITS.after
def dict_of_losses_returned():
    def step(x, y):
        return {"l1": F.l1_loss(x, y), "l2": F.mse_loss(x, y)}

    return step, (cuda(8, 4), cuda(8, 4))


@WAITS.before("GD103", COPIED)
def predictions_in_numpy():
    def step(x):
        return torch.from_numpy(x.softmax(1).cpu().numpy().argmax(1))

    return step, (cuda(8, 4),)


@WAITS.after
def predictions_on_gpu():
    def step(x):
        return x.softmax(1).argmax(1)

    return step, (cuda(8, 4),)


@WAITS.before("GD103", COPIED)
def loss_detached_to_cpu():
    def step(x, y):
        loss = F.mse_loss(x, y)
        return x - y, loss.detach().cpu()

    return step, (cuda(8, 4), cuda(8, 4))


@WAITS.after
def loss_detached():
    def step(x, y):
        loss = F.mse_loss(x, y)
        return x - y, loss.detach()

    return step, (cuda(8, 4), cuda(8, 4))


@WAITS.before("GD103", COPIED)
def sorted_on_cpu():
    def step(x):
        order = x.cpu().sort(dim=1).values
        return order.to(x.device) * 2

    return step, (cuda(8, 4),)


@WAITS.after
def sorted_on_gpu():
    def step(x):
        return x.sort(dim=1).values * 2

    return step, (cuda(8, 4),)


@WAITS.before("GD103", COPIED)
def features_offloaded():
    kept = torch.empty(8, 4)  # not pinned

    def step(x):
        features = x.relu()
        kept.copy_(features, non_blocking=True)
        return features.sum(1), kept

    return step, (cuda(8, 4),)


@WAITS.after
def features_returned():
    def step(x):
        features = x.relu()
        return features.sum(1), features

    return step, (cuda(8, 4),)


@WAITS.before("GD103", COPIED)
def accuracy_on_cpu():
    def step(x, y):
        hits = x.argmax(1).cpu() == y.argmax(1).cpu()
        return hits.float().mean()

    return step, (cuda(8, 4), cuda(8, 4))


@WAITS.after
def accuracy_on_gpu():
    def step(x, y):
        hits = x.argmax(1) == y.argmax(1)
        return hits.float().mean()

    return step, (cuda(8, 4), cuda(8, 4))


def doubled():
    """The cure of the timers: the step without them."""

    def step(x):
        return (x @ x.T).relu() * 2

    return step, (cuda(8, 4),)


def time_sync() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.time()


class StreamTimer:
    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *error):
        torch.cuda.current_stream().synchronize()
        self.seconds = time.perf_counter() - self.start


@WAITS.before("GD108", WAITED)
def synchronized_before_the_next_layer():
    def step(x):
        y = x @ x.T
        torch.cuda.synchronize()
        return y.relu() * 2

    return step, (cuda(8, 4),)


WAITS.after(doubled)


@WAITS.before("GD108", WAITED)
def timed_by_a_function():
    def step(x):
        time_sync()
        y = (x @ x.T).relu()
        time_sync()
        return y * 2

    return step, (cuda(8, 4),)


WAITS.after(doubled)


@WAITS.before("GD108", WAITED)
def timed_by_a_context():
    def step(x):
        with StreamTimer():
            y = (x @ x.T).relu()
        return y * 2

    return step, (cuda(8, 4),)


WAITS.after(doubled)


@WAITS.before("GD108", WAITED)
def timed_by_an_event():
    def step(x):
        y = (x @ x.T).relu()
        end = torch.cuda.Event()
        end.record()
        end.synchronize()
        return y * 2

    return step, (cuda(8, 4),)


WAITS.after(doubled)


@WAITS.before("GD108", "Between streams use wait_stream")
def side_stream_synchronized():
    side = torch.cuda.Stream()

    def step(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.relu()
        side.synchronize()
        return y * 2

    return step, (cuda(8, 4),)


@WAITS.after
def side_stream_waited_for():
    side = torch.cuda.Stream()

    def step(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.relu()
        torch.cuda.current_stream().wait_stream(side)
        return y * 2

    return step, (cuda(8, 4),)
