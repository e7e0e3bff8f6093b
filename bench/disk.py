"""The speed of direct sequential reads of a file: the best of several numbers of reads in flight and block sizes."""

import ctypes
import mmap
import os
import sys
import threading
import time

SHAPES = [(2, 1 << 20), (4, 1 << 20), (4, 4 << 20), (8, 1 << 20)]


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def read(path: str, start: int, length: int, threads: int, block: int) -> float:
    """Bytes per second of reading `length` bytes from `start`."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    lock, at, end = threading.Lock(), [start], start + length

    def work():
        # Large pages: scattered small ones split a read into many requests, and would make the disk seem slow.
        memory = mmap.mmap(-1, block + (4 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = memoryview(memory)[-address(memory) % (2 << 20) :][:block]
        buffer[::4096] = bytes(block // 4096)
        while True:
            with lock:
                offset = at[0]
                at[0] += block
            if offset >= end:
                return
            os.preadv(file, [buffer], offset)

    begun = time.perf_counter()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.close(file)
    return length / (time.perf_counter() - begun)


def speed(path: str, length: int = 512 << 20) -> float:
    """The best of the shapes, each over its own part of the file as far as it is long enough."""
    size = os.path.getsize(path) // (4 << 20) * (4 << 20)
    length = min(length, size)
    starts = [i * length % max(size - length + 1, 1) // (4 << 20) * (4 << 20) for i in range(len(SHAPES))]
    return max(read(path, start, length, *shape) for start, shape in zip(starts, SHAPES))


if __name__ == "__main__":
    print(f"{speed(sys.argv[1]) / 1e9:.2f} GB/s")
