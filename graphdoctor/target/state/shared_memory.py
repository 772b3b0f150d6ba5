"""Memory that two tensors share until somebody writes there: torch copies it then, for the one who writes.

So torch's own lazy clone works, which is no public name. Whoever asks a tensor for its address may write there,
and gets memory of its own at once; whoever has the address from before could write unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch

# torch's own, without a word in its stubs.
is_shared: Callable[[torch.Tensor], bool] = vars(torch._C)["_is_cow_tensor"]
# Where the storage of a tensor begins; asking for a pointer would make torch copy what is shared.
begin_of: Callable[[torch.Tensor], int] = vars(torch._C)["_data_address"]

# The same in C, which ends the sharing; what stands in for it on the emulated device notes that somebody asked.
own_begin_of: Callable[[torch.UntypedStorage], int] = vars(torch._C)["StorageBase"].data_ptr


def lies_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether it truly does, also where a device is emulated that it seems to lie on."""
    found: bool = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.CPU)
    return found


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor begins, to be told from others: nobody may write there."""
    return begin_of(tensor) + int(tensor.storage_offset()) * tensor.element_size()


def copied_when_written(tensor: torch.Tensor) -> torch.Tensor:
    """The same values whoever writes there later.

    Not for memory of the user's, which would lie elsewhere afterwards. A GPU's memory, and what torch did
    not allocate, is copied now.
    """
    if lies_on_cpu(tensor):
        with suppress(RuntimeError):
            return torch._lazy_clone(tensor)
    return tensor.clone()


def give_own_memory(tensor: torch.Tensor) -> None:
    """End the sharing before a tensor is resized: torch fails inside, or crashes, where memory is shared then."""
    if lies_on_cpu(tensor) and tensor.layout is torch.strided and is_shared(tensor):
        tensor.data_ptr()  # who asks for the address may write there
