"""Which bytes of tensors are alive, operation by operation, and what they were made for.

Under fake tensors nothing is computed and nothing allocated, but every operation still says how
large its results are, and every tensor still dies when its last owner lets go of it: autograd, a
module, a local variable. So the bytes alive are those of the real run, whatever the model is.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Change:
    """A storage that came to life, or died."""

    serial: int
    num_bytes: int
    """Positive at its birth, negative at its death."""


@dataclass
class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records when the storages of operations' results come and go."""

    phase: str = "other"
    """What storages are made for from now on."""
    changes: list[Change] = field(default_factory=list)
    purposes: dict[int, str] = field(default_factory=dict)
    """What each storage was made for, by its serial number."""
    _alive: dict[int, tuple[int, weakref.ref[UntypedStorage]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: UntypedStorage) -> None:
        address = storage._cdata
        if address in self._alive:
            return
        serial, num_bytes = len(self.purposes), storage.nbytes()

        def forget(_: object) -> None:
            self._alive.pop(address, None)
            self.changes.append(Change(serial, -num_bytes))

        self._alive[address] = (serial, weakref.ref(storage, forget))
        self.purposes[serial] = self.phase
        self.changes.append(Change(serial, num_bytes))

    @contextmanager
    def making(self, phase: str) -> Iterator[None]:
        """Say what storages are made for within this context."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def claim(self, tensors: Iterable[Tensor], purpose: str) -> None:
        """Say that tensors alive now serve a purpose, whatever they were made for."""
        for tensor in tensors:
            found = self._alive.get(tensor.untyped_storage()._cdata)
            if found is not None:
                self.purposes[found[0]] = purpose

    def peak(self, since: int = 0) -> Counter[str]:
        """Return the bytes alive by purpose when they were most, after change number `since`."""
        alive: dict[int, int] = {}
        total = most = 0
        at_peak: dict[int, int] = {}
        for number, change in enumerate(self.changes):
            total += change.num_bytes
            if change.num_bytes >= 0:
                alive[change.serial] = change.num_bytes
            else:
                alive.pop(change.serial, None)
            if number >= since and total > most:
                most, at_peak = total, dict(alive)
        found: Counter[str] = Counter()
        for serial, num_bytes in at_peak.items():
            found[self.purposes[serial]] += num_bytes
        return found
