"""Hand-built recordings for tests: operators, iterations and hits in one short call each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphdoctor.rules.rule import Hit
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import (
    Arg,
    External,
    Iteration,
    Leaf,
    Op,
    Phase,
    Recording,
    TensorUse,
)

_NO_ARGS: tuple[Arg, ...] = ()


def tensor(storage: int, *shape: int, offset: int = 0, dtype: str = "float32",
           device: str = "cuda:0") -> TensorUse:  # fmt: skip
    """A contiguous tensor at the start (or `offset`) of a storage."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorUse(
        storage=storage,
        shape=shape,
        stride=tuple(reversed(stride)),
        offset=offset,
        dtype=dtype,
        device=device,
        itemsize={"float32": 4, "float16": 2, "int64": 8, "bool": 1}[dtype],
    )


def op(
    name: str,
    inputs: Sequence[Arg] = _NO_ARGS,
    outputs: Sequence[TensorUse] = (),
    *,
    line: int = 1,
    module: str = "",
    phase: Phase = "forward",
    writes: Sequence[int] = (),
    device: str | None = None,
    kwargs: tuple[tuple[str, Arg], ...] = (),
    tags: Sequence[str] = (),
    file: str = "model.py",
) -> Op:
    """One operator, on the GPU unless all its tensors are elsewhere; `iteration` numbers it."""
    tensors = [*(use for use in inputs if isinstance(use, TensorUse)), *outputs]
    on_gpu = not tensors or any(use.is_cuda for use in tensors)
    return Op(
        index=0,
        name=name,
        args=tuple(inputs),
        kwargs=kwargs,
        outputs=tuple(outputs),
        writes=tuple(writes),
        tags=tuple(tags),
        phase=phase,
        module=module,
        device=device if device is not None else "cuda:0" if on_gpu else "cpu",
        location=Location(file, line),
    )


def iteration(
    ops: Iterable[Op],
    *,
    index: int = 0,
    externals: Sequence[External] = (),
    inputs: Sequence[TensorUse] = (),
    outputs: Sequence[TensorUse] = (),
    capturing: bool = True,
) -> Iteration:
    """The operators, numbered in order, as one run of a step."""
    numbered = []
    for position, each in enumerate(ops):
        fields = {name: getattr(each, name) for name in each.__struct_fields__}
        numbered.append(Op(**{**fields, "index": position}))
    return Iteration(
        index=index,
        capturing=capturing,
        inputs=tuple(Leaf(f"inputs[{at}]", use) for at, use in enumerate(inputs)),
        ops=tuple(numbered),
        events=(),
        externals=tuple(externals),
        outputs=tuple(Leaf(f"output[{at}]", use) for at, use in enumerate(outputs)),
        changes=(),
    )


def external(storage: int, name: str, device: str = "cuda:0") -> External:
    """A storage from outside the step: "inputs[0]" is an input, any other name is state."""
    return External(storage, "input" if name.startswith("inputs") else "state", name, device)


def recording(*iterations: Iteration) -> Recording:
    """The iterations as one recording; eager and captured runs are the same."""
    return Recording(device="emulated", mode="inference", eager=iterations, captured=iterations)


def hit(op_index: int, *, iteration: int = 0, between: bool = False) -> Hit:
    """A hit of some rule on an operator, or (`between`) before it."""
    return Hit(iteration=iteration, op_index=op_index, message="", location=None, between=between)
