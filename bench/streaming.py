"""How close decoding under a budget comes to the speed of the disk: a table for budgets of 10, 25 and 50 % of the weights.

    python bench/streaming.py MODEL

MODEL is a folder made by `outsize synth llama-1b MODEL --dtype bf16`. Every run of outsize is in a memory cgroup of its budget + 40 MB
(version 1, as root) that counts the page cache, and between two plain reads of the same files: direct, sequential, from the first
shard to the last, by threads that do nothing else. Which number and size of reads is fastest is tried at first; all that were tried are
printed. The share is that of each run in the mean of its two neighbours; what is printed is the median over the rounds.

The plain reads go into memory of two kinds. "Hot" is the least: one buffer a thread, the same over and over, which may stay in the processor's
cache: no model can do that, since it needs all of what it reads. "Ring" is as much memory as a ring has at least, 24 MiB.
"""

import argparse
import json
import mmap
import os
import pathlib
import statistics
import sys
import threading
import time

import cgroup
from disk import address, drop_page_cache

HERE = pathlib.Path(__file__).parent
PROMPT = ",".join(str(300 + 7 * i) for i in range(32))
ALIGN = 4 << 20
RING = 24 << 20

# Reads in flight, bytes of one read, bytes of memory that they go to.
HOT = [(2, 1 << 20), (4, 1 << 20), (2, 2 << 20), (2, 4 << 20), (4, 4 << 20), (8, 1 << 20)]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--seconds", type=float, default=3.0, help="of each plain read")
parser.add_argument("--decode-seconds", type=float, default=8.0, help="of each run, about")
parser.add_argument("--shares", type=int, nargs="+", default=[10, 25, 50], help="budgets, in percent of the weights")
args = parser.parse_args()

FILES = sorted(pathlib.Path(args.model).glob("*.safetensors"))


class Reader:
    """Plain reads of all files one after the other, going on where the last one stopped."""

    def __init__(self):
        self.files = [(os.open(path, os.O_RDONLY | os.O_DIRECT), path.stat().st_size // ALIGN * ALIGN) for path in FILES]
        self.files = [(file, size) for file, size in self.files if size]
        self.total = sum(size for _, size in self.files)
        self.at = 0

    def place(self, at: int):
        at %= self.total
        for file, size in self.files:
            if at < size:
                return file, at
            at -= size
        raise AssertionError

    def speed(self, shape: tuple[int, int], memory: int, seconds: float) -> float:
        """Bytes per second."""
        threads, block = shape
        slots = max(memory // block // threads, 1)
        lock, begun_at, counts = threading.Lock(), self.at, [0] * threads
        buffers = []
        for _ in range(threads):
            # Large pages: scattered small ones split a read into many requests, and would make the disk seem slow.
            region = mmap.mmap(-1, slots * block + (4 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            region.madvise(mmap.MADV_HUGEPAGE)
            start = -address(region) % (2 << 20)
            view = memoryview(region)[start : start + slots * block]
            view[::4096] = bytes(slots * block // 4096)
            buffers.append([view[slot * block :][:block] for slot in range(slots)])
        begun = time.perf_counter()
        end = begun + seconds

        def work(thread: int):
            turn = 0
            while time.perf_counter() < end:
                with lock:
                    file, offset = self.place(self.at)
                    self.at += block
                counts[thread] += os.preadv(file, [buffers[thread][turn % slots]], offset)
                turn += 1

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - begun
        # Every size of read begins at a multiple of the largest.
        self.at = (begun_at + sum(counts)) // ALIGN * ALIGN
        return sum(counts) / took


def run(budget: int, tokens: int) -> dict:
    command = [args.outsize, "run", args.model, "--ids", PROMPT, "--max-new-tokens", str(tokens), "--ignore-eos", "--json"]
    command += ["--max-memory", f"cpu={budget}"]
    drop_page_cache()
    status, out, err, peak, _ = cgroup.run(command, budget + 40_000_000)
    if status != 0:
        sys.exit(f"outsize failed with status {status} at a budget of {budget} bytes\n{err[-800:]}")
    return {**json.loads(out), "cgroup_peak": peak}


def main():
    weights = sum(path.stat().st_size for path in FILES)
    reader = Reader()
    # Each shape twice, in turns; the better of its two is its own.
    tried = {shape: max(reader.speed(shape, 0, 1.0) for _ in range(2)) for shape in HOT}
    best = max(tried, key=tried.get)
    print(f"{os.cpu_count()} CPUs; batch 1, prompt of 32 tokens; {weights / 1e9:.2f} GB of weights; {args.rounds} rounds; page cache dropped before each run")
    shapes = ", ".join(f"{count} of {block >> 20} MiB {speed / 1e9:.2f}" for (count, block), speed in tried.items())
    print(f"plain direct reads tried, GB/s: {shapes}; taken: {best[0]} of {best[1] >> 20} MiB\n")
    rows = {share: [] for share in args.shares}
    for turn in range(args.rounds):
        for share in args.shares:
            budget = weights * share // 100
            # About as long as asked for: streamed bytes at the speed just seen.
            pass_seconds = (weights - budget) / max(tried.values())
            tokens = max(int(args.decode_seconds / pass_seconds), 3) + 1
            before = reader.speed(best, 0, args.seconds), reader.speed(best, RING, args.seconds)
            result = run(budget, tokens)
            after = reader.speed(best, RING, args.seconds), reader.speed(best, 0, args.seconds)
            hot, ring = (before[0] + after[1]) / 2, (before[1] + after[0]) / 2
            speed = result["link_bytes_per_second"]
            rows[share].append({**result, "hot": hot, "ring": ring, "of_hot": speed / hot, "of_ring": speed / ring, "budget": budget})
            print(f"round {turn + 1}, {share} %: {speed / 1e9:.2f} of {hot / 1e9:.2f} (hot) and {ring / 1e9:.2f} (ring) GB/s", file=sys.stderr)

    print("| budget | s per token | GB/s | plain, hot | share | plain, ring | share | waiting for data | reads in flight | MiB a read | peak of the cgroup, MB | its limit, MB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for share, results in rows.items():

        def median(field: str) -> float:
            return statistics.median(result[field] for result in results)

        spread = f"{min(r['of_hot'] for r in results):.0%} to {max(r['of_hot'] for r in results):.0%}"
        print(
            f"| {median('budget') / 1e6:.0f} MB ({share} %) | {median('seconds_per_token'):.3f} | {median('link_bytes_per_second') / 1e9:.2f} "
            f"| {median('hot') / 1e9:.2f} | {median('of_hot'):.0%} ({spread}) | {median('ring') / 1e9:.2f} | {median('of_ring'):.0%} "
            f"| {median('waiting_for_data_share'):.0%} | {median('reads_in_flight'):.1f} | {median('bytes_per_read') / (1 << 20):.1f} "
            f"| {max(r['cgroup_peak'] for r in results) / 1e6:.0f} | {results[0]['budget'] / 1e6 + 40:.0f} |"
        )


main()
