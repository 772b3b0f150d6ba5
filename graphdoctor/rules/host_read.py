"""Finds the places where the host waits for a value of the device."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import for_mask, for_read
from graphdoctor.rules.causes.edits import without_read
from graphdoctor.rules.causes.number_lists import for_number_read
from graphdoctor.rules.causes.numbers import OUTSIDE
from graphdoctor.rules.causes.reads import Read, host_reads
from graphdoctor.rules.causes.source import is_formatting, written
from graphdoctor.rules.causes.words import operator_words, tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Recording

_METHODS = frozenset({"item", "tolist", "equal", "allclose", "is_nonzero", "any", "all"})
_BUILTINS = frozenset({"float", "int", "bool", "complex", "max", "min", "range", "round"})

# Of torch.distributions: what checks its arguments, by reading whether all of them are valid.
_CHECKED_METHODS = frozenset({"log_prob", "cdf", "icdf"})
_DISTRIBUTIONS = frozenset(
    {
        "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli",
        "Dirichlet", "Exponential", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric",
        "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy",
        "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal", "LowRankMultivariateNormal",
        "MixtureSameFamily", "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal",
        "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto", "Poisson",
        "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution",
        "Uniform", "VonMises", "Weibull", "Wishart",
    }
)  # fmt: skip
_UNCHECKED = (
    "Pass validate_args=False to the distribution, whose argument check reads the value. Where a library makes it: "
    "torch.distributions.Distribution.set_default_validate_args(False)."
)
_FUSED = "Construct SGD with fused=True: its other forms read a tensor learning rate on the CPU."


class HostRead(RecordingRule):
    """The CPU reads a value from the GPU.

    `.item()`, `.tolist()`, `float(t)`, `int(t)`, `bool(t)` and comparisons such as `torch.equal` make
    Python wait until the GPU has computed the value. During capture the GPU computes nothing, and CUDA
    rejects the host sync. PyTorch also reads values implicitly: a tensor used as a size, a 0-d tensor
    used as an index, an argument check.

    False alarm: the read does not run in a captured step, for example logging that a flag turns off in
    production.

    Keep the value on the GPU and compute with the tensor. Read it after the replay, outside the step,
    and not in every step.
    """

    id = "GD101"
    name = "host-read"
    effect = "capture-fails"
    explains = ("GD103", "GD202", "GD203", "GD204", "GD209")
    makes_host_wait = True
    evidence = MEASURED
    fix = "Compute with the tensor instead of its value. Move reads for logging after the step."

    def check(self, recording: Recording) -> Iterator[Hit]:
        iterations = {iteration.index: iteration for iteration in recording.captured}
        for read in host_reads(recording):
            if (
                not read.flow.branches
                and not read.of_scaler
                and not is_formatting(read.op.location)
            ):
                cure = for_number_read(read.op.location)
                cure = cure or _cure(read, iterations[read.iteration], recording)
                yield at_op(read.iteration, read.op, _message(read), cure=cure)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            total = x.abs().sum().item()  # <- GD101
            return x / total

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            total = x.abs().sum()
            return x / total

        return step, (torch.randn(8, 16, device="cuda"),)


def _cure(read: Read, iteration: Iteration, recording: Recording) -> Cure:
    if (cure := for_mask(read.op, iteration)) is not None:
        return cure
    fix = _fix(read, recording)
    return Cure(fix, edits=() if fix else without_read(read.op.location))


def _fix(read: Read, recording: Recording) -> str:
    """A better fix than the rule's, where a library reads, and can be told not to."""
    own = for_read(read.op, is_truth=read.use.dtype == "bool")
    if read.op.phase == "optimizer" and not own:
        names = {info.class_name for info in recording.optimizers}
        return _FUSED if names == {"SGD"} else OUTSIDE
    if written(read.op.location, _METHODS, _BUILTINS):
        return own
    return _UNCHECKED if checks_arguments(read.op.location) else own


def checks_arguments(place: Location | None) -> bool:
    """Whether a read on this line is the check of a distribution's arguments: the line itself reads no value."""
    if written(place, _METHODS, _BUILTINS):
        return False
    is_method = written(place, _CHECKED_METHODS, _DISTRIBUTIONS)
    return bool(is_method or written(place, _DISTRIBUTIONS, frozenset()))


def _message(read: Read) -> str:
    call = written(read.op.location, _METHODS, _BUILTINS)
    subject = f"`{call}`" if call else _unasked(read)
    return f"{subject} is a host sync: the CPU waits for the value of a {tensor_words(read.use)}."


def _unasked(read: Read) -> str:
    name = operator_words(read.op)
    if read.op.base_name != "_local_scalar_dense":
        return name
    return f"Conversion of a tensor to a Python number ({name})"
