"""From a cold start to the first token: what it takes, and what the disk and fresh memory allow in the same run.

    python bench/cold_start.py MODEL [--outsize PATH] [--rounds 3] [--prompt 8] [--settle 10]

Before each run the page cache is dropped (as root), and some seconds pass: a virtual machine may hand free memory back to its host only after a
while, and has it quickly until then. The limit of a run is the longer of two: all bytes over the disk's speed, and the bytes of memory that it fills for the
first time over the speed of fresh memory.
"""

import argparse
import ctypes
import glob
import json
import mmap
import os
import pathlib
import re
import statistics
import subprocess
import threading
import time

import disk

BUDGETS = [("resident", 1.0), ("50 %", 0.5), ("10 %", 0.1)]


def cold(settle: float):
    disk.drop_page_cache()
    time.sleep(settle)


def fresh_memory(length: int, threads: int = os.cpu_count()) -> float:
    """Bytes per second at which memory that nobody has used for a while is touched, in large pages, by all processors."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    libc = ctypes.CDLL(None)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    share = length // threads >> 21 << 21

    def touch(thread: int):
        for at in range(thread * share, (thread + 1) * share, 2 << 20):
            # ctypes lets go of the interpreter while the system works.
            libc.memset(ctypes.c_void_p(start + at), 0, ctypes.c_size_t(2 << 20))

    begun = time.perf_counter()
    workers = [threading.Thread(target=touch, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return share * threads / (time.perf_counter() - begun)


def measure(args, budget: int) -> dict:
    ids = ",".join(str(1 + at) for at in range(args.prompt))
    command = [args.outsize, "run", args.model, "--ids", ids, "--max-new-tokens", "1", "--ignore-eos", "--json"]
    command += ["--max-memory", f"cpu={budget}"]
    cold(args.settle)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def reads(args, budget: int) -> tuple[int, int, list[str]]:
    """The number of positioned reads that a run makes, their bytes, and what it opens for writing, as strace counts them. A run that streams ends with
    a measure of the disk, whose reads are among them."""
    trace = f"/tmp/cold-start-{os.getpid()}.trace"
    command = ["strace", "-f", "--seccomp-bpf", "-e", "trace=pread64,openat", "-o", trace, args.outsize, "run", args.model, "--ids", "1"]
    command += ["--max-new-tokens", "1", "--ignore-eos", "--json", "--max-memory", f"cpu={budget}"]
    subprocess.run(command, capture_output=True, check=True)
    with open(trace) as file:
        lines = file.readlines()
    os.remove(trace)
    counts = [int(found[1]) for line in lines if (found := re.search(r"pread64.*= (\d+)$", line.rstrip()))]
    written = [line for line in lines if re.search(r"O_(WRONLY|RDWR|CREAT)", line) and "/dev/" not in line]
    return len(counts), sum(counts), written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--outsize", default=str(root / "target" / "release" / "outsize"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--settle", type=float, default=10)
    parser.add_argument("--no-strace", action="store_true", help="do not count reads")
    args = parser.parse_args()

    shards = glob.glob(os.path.join(args.model, "*.safetensors"))
    total = sum(map(os.path.getsize, shards))
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    print(f"{len(shards)} files, {total / 1e9:.2f} GB; prompt of {args.prompt}, medians of {args.rounds} rounds, page cache dropped")
    # Memory first: reading would give back pages that are had quickly.
    cold(args.settle)
    memory_speeds, disk_speeds = [fresh_memory(1 << 30)], []
    largest = max(shards, key=os.path.getsize)
    shape = disk.best_shape(largest)

    rows = {}
    for _ in range(args.rounds):
        for name, share in BUDGETS:
            budget = int(total * share) + (200_000_000 if share == 1 else 0)
            if budget > available:
                continue
            disk_speeds.append(disk.sustained(largest, shape, 1.0))
            rows.setdefault((name, budget), []).append(measure(args, budget))
        cold(args.settle)
        memory_speeds.append(fresh_memory(1 << 30))
    disk_speed, memory_speed = statistics.median(disk_speeds), statistics.median(memory_speeds)
    spread = lambda speeds: f"{statistics.median(speeds) / 1e9:.2f} GB/s (least {min(speeds) / 1e9:.2f}, most {max(speeds) / 1e9:.2f})"
    print(f"direct reads of the disk, {shape[0]} of {shape[1] >> 20} MiB in flight: {spread(disk_speeds)}")
    print(f"memory touched for the first time, {os.cpu_count()} threads: {spread(memory_speeds)}\n")
    print("| budget | opening, ms | first token, s | GB read | of them kept | reads | MiB a read | limit, s | share of it |")
    print("|---|---|---|---|---|---|---|---|---|")
    written = []
    for (name, budget), runs in rows.items():
        median = lambda field: statistics.median(run[field] for run in runs)
        kept, read = runs[0]["placement"]["resident_bytes"], median("bytes_read")
        ring = runs[0]["placement"]["ring_bytes"]
        limit = max(read / disk_speed, (kept + ring) / memory_speed)
        first = median("first_token_seconds")
        if args.no_strace:
            count = each = "–"
        else:
            count, traced, opened = reads(args, budget)
            written += opened
            each = f"{traced / count / (1 << 20):.2f}"
        print(
            f"| {name}, {budget / 1e6:.0f} MB | {median('load_seconds') * 1e3:.0f} | {first:.2f} | {read / 1e9:.2f} | {kept / 1e9:.2f} "
            f"| {count} | {each} | {limit:.2f} | {limit / first:.0%} |"
        )
    if not args.no_strace:
        print(f"\nfiles opened for writing: {''.join(written) or 'none'}")


main()
