"""From a cold start to the first token: what it takes, and what the disk and fresh memory allow in the same run.

    python bench/cold_start.py MODEL [--outsize PATH] [--rounds 3] [--prompt 8] [--settle 10]

Before each run the page cache is dropped (as root), and some seconds pass: a virtual machine may hand free memory back to its host only after a
while, and has it quickly until then. The limit of a run is the longer of two: all bytes over the disk's speed, and the time in which as many bytes of memory as
it fills are touched for the first time; of these, the first may be had many times as fast as the rest.
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

GIB = 1 << 30
BUDGETS = [("resident", 1.0), ("50 %", 0.5), ("10 %", 0.1)]


def cold(settle: float):
    disk.drop_page_cache()
    time.sleep(settle)


def fresh_memory(length: int, threads: int = os.cpu_count()) -> list[float]:
    """Seconds after which each GiB and the rest of memory that nobody has used for a while is touched, in large pages, by all processors."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    libc = ctypes.CDLL(None)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    lock, at, seconds = threading.Lock(), [0], []

    def touch():
        while True:
            with lock:
                page = at[0]
                at[0] += 2 << 20
                if page % GIB == 0 and page > 0:
                    seconds.append(time.perf_counter() - begun)
            if page >= length:
                return
            # ctypes lets go of the interpreter while the system works.
            libc.memset(ctypes.c_void_p(start + page), 0, ctypes.c_size_t(min(2 << 20, length - page)))

    begun = time.perf_counter()
    workers = [threading.Thread(target=touch) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return seconds[: length // GIB] + [time.perf_counter() - begun]


def seconds_of(measured: list[float], length: int, part: int) -> float:
    """How long the first `part` bytes of `length` took."""
    ends = [GIB * (1 + at) for at in range(len(measured) - 1)] + [length]
    before, begun = 0, 0.0
    for end, seconds in zip(ends, measured):
        if part <= end:
            return begun + (seconds - begun) * (part - before) / max(1, end - before)
        before, begun = end, seconds
    return begun * part / length


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
    length = min(total, available * 3 // 4)
    # Memory first: reading would give back pages that are had quickly.
    cold(args.settle)
    memory_seconds, disk_speeds = [fresh_memory(length)], []
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
        memory_seconds.append(fresh_memory(length))
    disk_speed = statistics.median(disk_speeds)
    first, all_of_it = ([length_of / times[at] for times in memory_seconds] for length_of, at in ((min(GIB, length), 0), (length, -1)))
    spread = lambda speeds: f"{statistics.median(speeds) / 1e9:.2f} GB/s (least {min(speeds) / 1e9:.2f}, most {max(speeds) / 1e9:.2f})"
    print(f"direct reads of the disk, {shape[0]} of {shape[1] >> 20} MiB in flight: {spread(disk_speeds)}")
    print(f"memory touched for the first time, {os.cpu_count()} threads, {length / 1e9:.2f} GB: {spread(all_of_it)}")
    print(f"of it the first GiB, which the system may have at hand: {spread(first)}\n")
    print("| budget | opening, ms | first token, s | GB read | of them kept | reads | MiB a read | limit, s | share of it |")
    print("|---|---|---|---|---|---|---|---|---|")
    written = []
    for (name, budget), runs in rows.items():
        median = lambda field: statistics.median(run[field] for run in runs)
        kept, read = runs[0]["placement"]["resident_bytes"], median("bytes_read")
        ring = runs[0]["placement"]["ring_bytes"]
        limit = max(read / disk_speed, statistics.median(seconds_of(times, length, kept + ring) for times in memory_seconds))
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
