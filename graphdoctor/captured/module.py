"""The module that replaces a captured model: it is the model, except for how it is called.

The captured module is of a subclass of the model's class, and its attributes *are* the model's: both
have one `__dict__`. So `state_dict`, `parameters`, `to`, `train`, hooks and attributes are the
model's own, an optimizer sees each parameter once, and it can be put in the model's place.
"""

from __future__ import annotations

import copy
import copyreg
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.captured.known_call import NOT_KNOWN
from graphdoctor.captured.parts import Parts
from graphdoctor.captured.plan import CapturePlan, explain
from graphdoctor.captured.replays import Replays
from graphdoctor.captured.sizes import Sizes, SizeUse
from graphdoctor.graphs.calls.tally import register
from graphdoctor.values.errors import UsageError

OWN_NAMES = ("plan", "coverage", "fallbacks", "hits", "explain", "release")
_SLOT = "_graphdoctor_captured"
_OF_ANOTHER_CLASS = "the class of the captured module was reassigned"
_set_class = vars(object)["__class__"].__set__
Call = Callable[[tuple[Any, ...], dict[str, Any]], object]


@dataclass(slots=True, weakref_slot=True, eq=False)
class CapturedModel:
    """What is behind a captured module. `parts` are the graphs of modules, `sizes` those of sizes."""

    model: torch.nn.Module
    plan: CapturePlan
    replays: Replays
    parts: Parts | None = None
    sizes: Sizes | None = None

    def __post_init__(self) -> None:
        register(self)

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def replayed(self) -> int:
        """How many calls, or calls of parts, a graph has served."""
        return self.replays.replayed + (self.parts.replays if self.parts is not None else 0)

    def fallbacks(self) -> Counter[str]:
        """Calls that ran eagerly, of the whole and of parts, by the reason."""
        counted = Counter(self.replays.fallbacks)
        if self.parts is not None:
            counted.update(self.parts.fallbacks)
        return counted

    @property
    def hits(self) -> tuple[SizeUse, ...]:
        """What the graph of each size has answered; empty without sizes."""
        return self.sizes.uses if self.sizes is not None else ()

    def explain(self) -> str:
        return explain(
            self.name,
            self.plan,
            replayed=self.replays.replayed,
            part_replays=self.parts.replays if self.parts is not None else 0,
            fallbacks=self.fallbacks(),
            uses=self.hits,
        )

    def release(self) -> None:
        """Give all graphs' memory back."""
        self.replays.release()
        if self.parts is not None:
            self.parts.release()
        self.parts = None
        self.plan = CapturePlan(
            "eager", launches=self.plan.launches, obstacles=("it was released",)
        )


def module_of(model: torch.nn.Module, captured: CapturedModel) -> Any:
    """The model with other calls. Raises `UsageError` for a class that cannot be derived from."""
    taken = [name for name in OWN_NAMES if hasattr(model, name)]
    members = {name: value for name, value in _MEMBERS.items() if name not in taken}
    kind = type(model)
    try:
        # The name stays: libraries write it into what they save, and look models up by it.
        derived = types.new_class(
            kind.__name__, (kind,), exec_body=lambda body: body.update(members)
        )
        made: Any = derived.__new__(derived)  # type: ignore[call-overload]
        object.__setattr__(made, "__dict__", model.__dict__)
    except TypeError as error:
        raise UsageError(
            f"capture() makes a subclass of {kind.__name__}, which that class does not allow: {error}"
        ) from error
    become(made, captured)
    return made


def become(module: object, captured: CapturedModel) -> None:
    """Let a captured module be run by this from now on."""
    object.__setattr__(module, _SLOT, captured)
    replays = captured.replays

    def answer(self: object, /, *args: Any, **kwargs: Any) -> object:
        answer = replays.last(replays, args, kwargs)
        return answer if answer is not NOT_KNOWN else replays.call(args, kwargs)

    _be_called(module, answer)


def answer_with(module: object, call: Call) -> None:
    """Let a captured module answer its calls by a function of their arguments."""

    def answer(self: object, /, *args: Any, **kwargs: Any) -> object:
        return call(args, kwargs)

    _be_called(module, answer)


def _be_called(module: object, answer: Callable[..., object]) -> None:
    """Its class is of this one module, so that no call has to look up whose it is."""
    type.__setattr__(type(module), "__call__", answer)


def is_captured(module: object) -> bool:
    """Whether a module came from `module_of`."""
    return hasattr(type(module), _SLOT)


def behind(module: object) -> CapturedModel:
    """What is behind a captured module; also where the model has a `plan` or `release` itself."""
    found: CapturedModel = object.__getattribute__(module, _SLOT)
    return found


def _plan(self: object) -> object:
    """How the model is run: as a whole, in parts, or eagerly; with the reasons."""
    return behind(self).plan


def _coverage(self: object) -> float:
    """The share of one call's launches that are in graphs, 0.0 to 1.0."""
    return behind(self).plan.coverage


def _fallbacks(self: object) -> Counter[str]:
    """How many calls, or calls of parts, ran eagerly, by the reason."""
    return behind(self).fallbacks()


def _hits(self: object) -> tuple[SizeUse, ...]:
    """For each captured size, how many calls it answered, how many of them padded, and the padding."""
    return behind(self).hits


def _explain(self: object) -> str:
    """What is replayed, what is not and why, and what happened since, in sentences."""
    return behind(self).explain()


def _release(self: object) -> None:
    """Give the memory of the graphs back; calls are eager from now on."""
    behind(self).release()


def _class_of(self: object) -> type:
    return type(self)


def _take_class(self: object, kind: type) -> None:
    """Be of another class, as parametrizations make one: its code runs from now on, and no graph of the model's."""
    captured = behind(self)
    call = type(captured.model).__call__

    def answer(self: object, /, *args: Any, **kwargs: Any) -> object:
        captured.replays.fallbacks[_OF_ANOTHER_CLASS] += 1
        return call(self, *args, **kwargs)

    made = next(cls for cls in type(self).__mro__ if _SLOT in vars(cls))
    _set_class(self, kind)
    type.__setattr__(made, "__call__", answer)


def _deepcopy(self: object, memo: dict[int, Any]) -> object:
    """A copy of the model: a graph belongs to the memory of one model, and is not copied."""
    return copy.deepcopy(behind(self).model, memo)


def _reduce_ex(self: object, protocol: Any) -> object:
    """Saved as the model itself, which can be captured again where it is loaded."""
    made = behind(self).model.__reduce_ex__(protocol)
    if isinstance(made, tuple) and made[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
        return (object.__new__, *made[1:])  # pickle insists that __newobj__ makes the same class
    return made


_MEMBERS: dict[str, object] = {
    "__slots__": (_SLOT,),
    "__module__": __name__,
    "__class__": property(_class_of, _take_class),
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _reduce_ex,
    "plan": property(_plan),
    "coverage": property(_coverage),
    "fallbacks": property(_fallbacks),
    "hits": property(_hits),
    "explain": _explain,
    "release": _release,
}
