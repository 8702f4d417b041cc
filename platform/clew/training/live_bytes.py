"""Which bytes of tensors are alive, operation by operation, and what they were made for.

Under fake tensors nothing is computed and nothing allocated, but every operation still says how
large its results are, and every tensor still dies when its last owner lets go of it: autograd, a
module, a local variable. So the bytes alive are those of the real run, whatever the model is.
torch's own `MemTracker` counts the same; it needs up to three times as long.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages of operations' results while they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.purpose = "other"
        """What storages are made for from now on."""
        self.now: Counter[str] = Counter()
        """Bytes alive, by purpose."""
        self.peak: Counter[str] = Counter()
        """Bytes alive, by purpose, when they were most; clear it to look for a later peak."""
        self.sparse_bytes = 0
        """Bytes of indices and values that sparse tensors were made of so far."""
        self._purposes: dict[int, str] = {}
        self._references: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default:
            parts = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.sparse_bytes += sum(part.nbytes for part in parts)
        for leaf in tree_leaves(result):
            # What a sparse tensor is made of was seen when it was made.
            if isinstance(leaf, Tensor) and not leaf.is_sparse:
                self._see(leaf.untyped_storage())
        if self.now.total() > self.peak.total():
            self.peak = self.now.copy()
        return result

    def _see(self, storage: UntypedStorage) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address in self._purposes:
            return

        def forget(_: object) -> None:
            self.now[self._purposes.pop(address)] -= num_bytes
            del self._references[address]

        self._references[address] = weakref.ref(storage, forget)
        self._purposes[address] = self.purpose
        self.now[self.purpose] += num_bytes

    @contextmanager
    def making(self, purpose: str) -> Iterator[None]:
        """Say what storages are made for within this context."""
        before, self.purpose = self.purpose, purpose
        try:
            yield
        finally:
            self.purpose = before

    def claim(self, tensor: Tensor, purpose: str) -> None:
        """Say that a tensor serves a purpose from now on, whatever it was made for."""
        if tensor.is_sparse:
            return
        storage = tensor.untyped_storage()
        before = self._purposes.get(storage._cdata)
        if before is not None:
            self.now[before] -= storage.nbytes()
            self.now[purpose] += storage.nbytes()
            self._purposes[storage._cdata] = purpose
