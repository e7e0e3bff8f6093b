"""Runs outsize beside torch, accelerate and llama.cpp on the same weights, in turns, and prints one table of medians.

    python bench/side_by_side.py MODEL MODEL.gguf                      # everything in memory, and 10, 25 and 50 % of the weights
    python bench/side_by_side.py MODEL MODEL.gguf --only resident      # only one half of it
    python bench/side_by_side.py MODEL MODEL.gguf --only streamed --shares 25
    python bench/side_by_side.py MODEL MODEL.gguf --only tokens --rounds 10   # a token with everything in memory, and nothing else
    python bench/side_by_side.py MODEL.gguf MODEL.gguf --only tokens          # the same of outsize and llama.cpp on one file
    python bench/side_by_side.py MODEL MODEL.gguf --only gpu                  # the same model with a GPU; needs no cgroups

MODEL is a folder made by `outsize synth llama-1b MODEL --dtype bf16`, MODEL.gguf made of it by gguf_from_safetensors.py. Every run is in a
memory cgroup of its own, which counts the page cache; in a row of the table all cgroups are equally large. Cold runs begin with an
empty page cache. See README.md for what must be installed. Takes about a quarter of an hour.
"""

import argparse
import os
import pathlib
import statistics
import sys

import cgroup
import contenders
import disk
import gpu_columns
from contenders import Task

HERE = pathlib.Path(__file__).parent
PREFILLS = [8, 32, 128, 512]
BATCHES = [1, 2, 4, 8, 16]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("gguf", type=pathlib.Path)
parser.add_argument("--only", choices=["resident", "streamed", "tokens", "gpu"])
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--passes", default=str(HERE.parent / "target/release/examples/passes"), help="the example of that name")
parser.add_argument("--rounds", type=int, default=3, help="rounds with everything in memory")
parser.add_argument("--streamed-rounds", type=int, default=2)
parser.add_argument("--new-tokens", type=int, default=17, help="with everything in memory")
parser.add_argument("--streamed-new-tokens", type=int, default=9)
parser.add_argument("--shares", type=int, nargs="+", default=[10, 25, 50], help="budgets, in percent of the weights")
parser.add_argument("--beside", type=int, default=40_000_000, help="bytes of the cgroup beyond the budget")
parser.add_argument("--roomy", type=int, default=1_800_000_000, help="a larger cgroup, in which accelerate runs too; 0 for none")
parser.add_argument("--timeout", type=float, default=90, help="seconds after which a run is given up")
args = parser.parse_args()

WEIGHTS = sum(path.stat().st_size for path in ([args.model] if args.model.is_file() else args.model.glob("*.safetensors")))


class Column:
    """What one contender came to over the rounds."""

    def __init__(self):
        self.runs, self.failures = [], []

    def add(self, result: dict):
        (self.failures if "failed" in result else self.runs).append(result)

    def cell(self, value, form: str) -> str:
        """The median of a value; or why there is none; and how many runs failed of those that did not all."""
        found = [value(run) for run in self.runs]
        found = [one for one in found if one is not None]
        if not found:
            return self.failures[0]["failed"] if self.failures else ""
        failed = f" ({len(self.failures)} failed)" if self.failures else ""
        return format(statistics.median(found), form) + failed


def row(title: str, cells: list[str]):
    print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


def table(first: str, columns):
    print(f"\n| {first} | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))


def field(name: str, key: int | None = None, scale: float = 1.0):
    def value(run: dict):
        found = run.get(name)
        if key is not None:
            found = (found or {}).get(str(key))
        return None if found is None else found * scale

    return value


def same_tokens(columns: dict[str, Column], names: dict[str, str]):
    """Says whether all generated what outsize did."""
    firsts = {name: column.runs[0]["tokens"] for name, column in columns.items() if column.runs and column.runs[0].get("tokens")}
    ours = firsts.pop("outsize", None)
    for name, tokens in firsts.items():
        if ours is not None and name in names:
            same = next((i for i, (a, b) in enumerate(zip(ours, tokens)) if a != b), None)
            print(f"{name}: {'the same tokens as outsize' if same is None else f'other tokens than outsize from the {same + 1}th on'}{names[name]}")


ROUNDED = " (it rounds activations to bf16)"


def resident():
    limit = int(1.5 * WEIGHTS) + 1_000_000_000
    everyone = [contenders.outsize(args.outsize, args.model), contenders.torch(args.model), contenders.llama_cpp(args.gguf)]
    names = ["outsize", "outsize, bf16", "torch", "llama.cpp"]
    cold, warm, passes = ({name: Column() for name in names} for _ in range(3))
    lengths, rows = ",".join(map(str, PREFILLS)), ",".join(map(str, BATCHES))
    for at in range(args.rounds):
        for contender in everyone:
            print(f"all in memory, round {at + 1}: {contender.name}", file=sys.stderr)
            task = Task(args.new_tokens, lengths, rows)
            result = contenders.run(contender, task, limit, args.timeout)
            cold[contender.name].add(result)
            if contender.name != "outsize":
                passes[contender.name].add(result)
            # The page cache is full now.
            warm[contender.name].add(contenders.run(contender, Task(2), limit, args.timeout, cold=False))
        for name, compute in [("outsize", "f32"), ("outsize, bf16", "bf16")]:
            command = [args.passes, str(args.model), compute, lengths, rows]
            passes[name].add(contenders.run_command(command, limit, args.timeout))
    print(f"\n**Everything in memory**, in cgroups of {limit / 1e6:.0f} MB; medians of {args.rounds} rounds. outsize keeps activations in f32,")
    print("or rounds them to bf16 with `--compute bf16`. Prompts and batches: in a process that has run the same once.")
    table("seconds", names)
    row("a token, behind 32 to 48", [cold[n].cell(field("seconds_per_token"), ".3f") for n in names])
    for title, columns in (("cold", cold), ("warm", warm)):
        row(f"start to first token, {title}", [columns[n].cell(field("first_token_seconds"), ".2f") for n in names])
        row(f"of it loading, {title}", [columns[n].cell(field("load_seconds"), ".2f") for n in names])
    for tokens in PREFILLS:
        row(f"prompt of {tokens}", [passes[n].cell(field("prefills", tokens), ".3f") for n in names])
    for batch in BATCHES:
        row(f"a step of a batch of {batch}", [passes[n].cell(field("batches", batch), ".3f") for n in names])
    row("peak resident set, MB", [cold[n].cell(field("peak_rss_bytes", scale=1e-6), ".0f") for n in names])
    same_tokens(cold, {"torch": ROUNDED, "llama.cpp": ROUNDED})


def tokens():
    """Each run's token: where memory has more than one speed, a median of few runs says little."""
    limit = int(1.5 * WEIGHTS) + 1_000_000_000
    everyone = [contenders.outsize(args.outsize, args.model, compute) for compute in ("f32", "bf16")]
    if not args.model.is_file():
        everyone.append(contenders.torch(args.model))
    everyone.append(contenders.llama_cpp(args.gguf))
    columns, rounds = {contender.name: Column() for contender in everyone}, []
    for at in range(args.rounds):
        rounds.append([])
        for contender in everyone:
            print(f"a token, round {at + 1}: {contender.name}", file=sys.stderr)
            rounds[-1].append(contenders.run(contender, Task(args.new_tokens), limit, args.timeout, cold=False))
            columns[contender.name].add(rounds[-1][-1])
    print(f"\n**A token**, everything in memory, in cgroups of {limit / 1e6:.0f} MB, in milliseconds; {args.rounds} rounds in turns.")
    table("round", list(columns))
    token = field("seconds_per_token", scale=1e3)
    for at, results in enumerate(rounds):
        row(str(at + 1), [result["failed"] if "failed" in result else f"{token(result):.1f}" for result in results])
    row("median", [column.cell(token, ".1f") for column in columns.values()])
    row("least", [f"{min(map(token, column.runs)):.1f}" if column.runs else "" for column in columns.values()])


def streamed():
    shard = str(max(args.model.glob("*.safetensors"), key=lambda path: path.stat().st_size))
    disk.drop_page_cache()
    shape = disk.best_shape(shard)
    ours = contenders.outsize(args.outsize, args.model)
    accelerate, llama = contenders.torch(args.model, "accelerate"), contenders.llama_cpp(args.gguf)
    everyone = [("outsize", ours, None), ("accelerate", accelerate, None), ("llama.cpp", llama, None)]
    roomy = f"accelerate in {args.roomy / 1e6:.0f} MB"
    if args.roomy:
        everyone.append((roomy, accelerate, args.roomy))
    names = [name for name, *_ in everyone]
    print(f"\n**A part of the weights in memory**: budgets of a share of {WEIGHTS / 1e6:.0f} MB, cgroups of the budget and {args.beside / 1e6:.0f} MB more,")
    print(f"page cache counted and empty at the start; medians of {args.streamed_rounds} rounds; prompt of 32 tokens, {args.streamed_new_tokens} new; a run is given up after {args.timeout:.0f} s.")
    print("outsize holds the whole process in the budget, accelerate the weights that stay; llama.cpp maps its file.")
    all_columns = {}
    for share in args.shares:
        budget = WEIGHTS * share // 100
        limit = budget + args.beside
        columns, speeds = {name: Column() for name in names}, []
        for at in range(args.streamed_rounds):
            for name, contender, other_limit in everyone:
                print(f"{share} %, round {at + 1}: {name}", file=sys.stderr)
                if name == "outsize":
                    speeds.append(disk.sustained(shard, shape, 1.5))
                task = Task(args.streamed_new_tokens, budget=budget)
                columns[name].add(contenders.run(contender, task, other_limit or limit, args.timeout))
                if name == "outsize":
                    speeds.append(disk.sustained(shard, shape, 1.5))
        speed = statistics.median(speeds)
        table(f"{share} %: {budget / 1e6:.0f} MB in {limit / 1e6:.0f} MB", names)
        row("seconds a token", [columns[n].cell(field("seconds_per_token"), ".3f") for n in names])
        row("prompt of 32, s", [columns[n].cell(field("prefill_seconds"), ".2f") for n in names])
        row("start to first token, s", [columns[n].cell(field("first_token_seconds"), ".2f") for n in names])
        row("peak resident set, MB", [columns[n].cell(field("peak_rss_bytes", scale=1e-6), ".0f") for n in names])
        row("peak of the cgroup, MB", [columns[n].cell(field("cgroup_peak_bytes", scale=1e-6), ".0f") for n in names])
        row("read while decoding, of the disk's speed", [columns["outsize"].cell(field("link_bytes_per_second", scale=1 / speed), ".0%"), *[""] * (len(names) - 1)])
        print(f"\ndirect reads of the disk before and after each run of outsize, {shape[0]} of {shape[1] >> 20} MiB in flight: {speed / 1e9:.2f} GB/s (least {min(speeds) / 1e9:.2f}, most {max(speeds) / 1e9:.2f})")
        all_columns = columns
    same_tokens(all_columns, {name: ROUNDED for name in names if name != "outsize"})


def main():
    if args.only == "gpu":
        print(f"{os.cpu_count()} CPUs; {contenders.versions('torch', 'transformers', 'accelerate', 'llama-cpp-python')}")
        return gpu_columns.compare(args, WEIGHTS)
    if not cgroup.available():
        sys.exit("memory cgroups of version 1 cannot be made here: run as root on a system that has them")
    for path in (args.model, args.gguf, pathlib.Path(args.outsize), pathlib.Path(args.passes)):
        if not path.exists():
            sys.exit(f"{path} is missing: see README.md")
    print(f"{os.cpu_count()} CPUs; {contenders.versions('torch', 'transformers', 'accelerate', 'llama-cpp-python')}; batch 1 unless said; in turns")
    if args.only in (None, "resident"):
        resident()
    if args.only in (None, "streamed"):
        streamed()
    if args.only == "tokens":
        tokens()


main()
