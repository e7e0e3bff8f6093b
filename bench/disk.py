"""The speed of direct sequential reads of a file: the best of several numbers of reads in flight and block sizes.

    python bench/disk.py FILE [--small-pages]
"""

import ctypes
import mmap
import os
import pathlib
import subprocess
import sys
import threading
import time

LARGE_PAGES = "--small-pages" not in sys.argv

SHAPES = [(2, 1 << 20), (4, 1 << 20), (4, 4 << 20), (8, 1 << 20)]


def drop_page_cache():
    """Forgets what the system has kept of files. Needs root."""
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def read(path: str, start: int, length: int, threads: int, block: int) -> float:
    """Bytes per second of reading `length` bytes from `start`."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    lock, at, end = threading.Lock(), [start], start + length

    def work():
        # Large pages: scattered small ones split a read into many requests, and would make the disk seem slow.
        memory = mmap.mmap(-1, block + (4 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if LARGE_PAGES else mmap.MADV_NOHUGEPAGE)
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


def best_shape(path: str) -> tuple[int, int]:
    """The number of reads in flight and the block size that read fastest."""
    size = os.path.getsize(path) // (4 << 20) * (4 << 20)
    return max(SHAPES, key=lambda shape: read(path, 0, size, *shape))


def sustained(path: str, shape: tuple[int, int], seconds: float = 3.0) -> float:
    """Bytes per second over some seconds of reading the file again and again: long enough to meet the disk's slow moments too."""
    size = os.path.getsize(path) // (4 << 20) * (4 << 20)
    begun, total = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        read(path, 0, size, *shape)
        total += size
    return total / (time.perf_counter() - begun)


if __name__ == "__main__":
    shape = best_shape(sys.argv[1])
    print(f"{sustained(sys.argv[1], shape) / 1e9:.2f} GB/s with {shape[0]} reads of {shape[1] >> 20} MiB in flight")
