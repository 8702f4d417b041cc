"""How large glibc's heap becomes for a sequence of tensors: the allocator itself is asked.

    python heap_replay.py < request.json

Between tensors that live long and short, a heap keeps holes that nothing fits into; with
`keep_allocator_pages` it can be half as large again as what is in use. No formula says how much,
so a fresh process makes and frees blocks of the same sizes in the same order. It never writes to
them: the kernel gives no page, and a replay of 100 GiB takes no memory. Needs no other module.
"""

import ctypes
import json
import os
import sys
from typing import Any

ALIGNMENT = 64
# What torch allocates beside each tensor's data: records of tensor and storage, sizes, deleter.
RECORD_BYTES = (112, 48, 208, 32)
WATCHED_BYTES = 64 * 1024
"""Smaller blocks are made without a look at the heap, which takes time."""
# <malloc.h>; as in clew.training.memory, which a bare interpreter cannot import.
KEPT_PAGES = ((-3, 32 * 1024**2), (-1, 2**31 - 1), (-4, 0))


class HeapSize(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


class Heap:
    """Makes blocks as torch does on a CPU, and watches the heap grow."""

    def __init__(self, *, keep_pages: bool) -> None:
        self.libc: Any = ctypes.CDLL("libc.so.6")
        self.libc.mallinfo2.restype = HeapSize
        self.libc.malloc.restype = ctypes.c_void_p
        self.libc.malloc.argtypes = [ctypes.c_size_t]
        self.libc.free.argtypes = [ctypes.c_void_p]
        for option, value in KEPT_PAGES if keep_pages else ():
            self.libc.mallopt(option, value)
        self.blocks: dict[tuple[int, int], list[int | None]] = {}
        self.before = self.size()
        self.peak = 0

    def size(self) -> int:
        """Return the bytes that the heap takes now, mapped blocks included."""
        info = self.libc.mallinfo2()
        return int(info.arena + info.hblkhd)

    def make(self, key: tuple[int, int], num_bytes: int) -> None:
        """Make a tensor's blocks."""
        records = [self.libc.malloc(size) for size in RECORD_BYTES]
        data = ctypes.c_void_p()
        if self.libc.posix_memalign(ctypes.byref(data), ALIGNMENT, max(num_bytes, 1)):
            raise MemoryError(f"no address space for {num_bytes:,} bytes")
        self.blocks[key] = [data.value, *records]
        if num_bytes >= WATCHED_BYTES:
            self.peak = max(self.peak, self.size() - self.before)

    def free(self, key: tuple[int, int]) -> None:
        """Free a tensor's blocks."""
        for block in self.blocks.pop(key, []):
            self.libc.free(block)

    def replay(self, changes: list[tuple[int, int]], turn: int) -> None:
        """Go through changes (serial number, bytes); what is alive afterwards stays."""
        for serial, num_bytes in changes:
            if num_bytes >= 0:
                self.make((turn, serial), num_bytes)
            else:
                self.free((turn, serial) if (turn, serial) in self.blocks else (0, serial))

    def end_turn(self, turn: int) -> None:
        """Free what a repeated step left: the next one makes its own."""
        for key in [key for key in self.blocks if key[0] == turn]:
            self.free(key)


def main() -> None:
    """Replay the request on standard input and print the heap's peak in bytes."""
    request = json.load(sys.stdin)
    heap = Heap(keep_pages=request["keep_pages"])
    heap.replay(request["before"], 0)
    for turn in range(1, request["steps"] + 1):
        heap.replay(request["step"], turn)
        heap.end_turn(turn)
    os.write(1, str(heap.peak).encode())


if __name__ == "__main__":
    main()
