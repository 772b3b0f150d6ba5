"""An import of torch that failed -> what to say: it is mostly a fault of the installation, and none of ours."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType

from graphdoctor.values.errors import CannotDoItHere
from graphdoctor.values.escape import visible


def require_torch() -> None:
    """Raise CannotDoItHere where no torch is installed; it is not imported."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        raise CannotDoItHere(
            f"there is no PyTorch for {sys.executable}, and this needs it: run graphdoctor with the Python of the "
            "model and install it there; pipx and uvx install graphdoctor in a separate environment"
        )


def raise_if_of_torch(error: Exception) -> None:
    """Raise CannotDoItHere if `error` is that torch is not there, or that it could not be imported."""
    if not isinstance(error, ImportError | OSError):
        return
    if getattr(error, "name", None) == "torch":
        require_torch()
    if _is_from_the_import_of_torch(error.__traceback__):
        raise CannotDoItHere(
            f"the PyTorch of {sys.executable} cannot be imported: {visible(str(error))}; "
            "`python -c 'import torch'` has to work there"
        )


def _is_from_the_import_of_torch(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        names = traceback.tb_frame.f_globals
        if names.get("__name__") == "torch" and traceback.tb_frame.f_code.co_name == "<module>":
            return True
        traceback = traceback.tb_next
    return False
