"""Counts the live bytes of tensors after every operation, by the purpose of the tensors.

With fake tensors, nothing is computed or allocated. But every operation still returns results with
the right size, and every tensor is still freed when its last owner (autograd, a module, a local
variable) releases it. The live bytes are therefore those of a real run, for any model. torch's
`MemTracker` gives the same counts but takes up to three times as long.
"""

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, UntypedStorage
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TookTooLong(Exception):
    """A trial step on tensors without data took more than its time."""


class TimeLimit:
    """Ends what runs inside it after some seconds of this thread's processor time.

    What a busy machine does meanwhile does not count. The time is looked at before each module and
    by `check`. An operation of torch must not raise: in a dispatch mode that ends the process.

    Raises:
        TookTooLong: At the first look after that time.
    """

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._end = time.thread_time() + seconds

    def __enter__(self) -> Self:
        self._hook = register_module_forward_pre_hook(lambda *_: self.check())
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def check(self) -> None:
        """Raise if the time is over; do nothing in other threads, which share the hook."""
        if threading.get_ident() == self._thread and time.thread_time() > self._end:
            raise TookTooLong


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages of all results while these storages are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.purpose = "other"
        """The purpose of new storages."""
        self.now: Counter[str] = Counter()
        """Live bytes by purpose."""
        self.peak: Counter[str] = Counter()
        """Live bytes by purpose when their total was largest; clear it to measure a new peak."""
        self.sparse_bytes = 0
        """Bytes of the indices and values of all sparse tensors created so far."""
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
            # The indices and values of a sparse tensor were counted when they were created.
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
        """Set the purpose of storages that are created inside this context."""
        before, self.purpose = self.purpose, purpose
        try:
            yield
        finally:
            self.purpose = before

    def claim(self, tensor: Tensor, purpose: str) -> None:
        if tensor.is_sparse:
            return
        storage = tensor.untyped_storage()
        before = self._purposes.get(storage._cdata)
        if before is not None:
            self.now[before] -= storage.nbytes()
            self.now[purpose] += storage.nbytes()
            self._purposes[storage._cdata] = purpose
