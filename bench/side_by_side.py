"""Times `outsize run` beside transformers and accelerate on the same checkpoint, interleaved, and prints a table of medians.

    python bench/side_by_side.py streamed MODEL    # 600 MB of 2.2 GB: outsize in a cgroup of 640 MB, accelerate in 1.8 GB
    python bench/side_by_side.py resident MODEL    # everything in memory, beside torch

MODEL is a folder made by `outsize synth llama-1b MODEL --dtype bf16`. Needs torch, transformers and accelerate; `streamed` needs root
and cgroups of version 1. The page cache is dropped before every run.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import cgroup
import disk

HERE = pathlib.Path(__file__).parent
PROMPT = ",".join(str(300 + 7 * i) for i in range(32))

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["streamed", "resident"])
parser.add_argument("model")
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--new-tokens", type=int, default=17)
parser.add_argument("--budget", default="600MB")
parser.add_argument("--cgroup", type=int, default=640_000_000, help="bytes for outsize")
parser.add_argument("--accelerate-cgroup", type=int, default=1_800_000_000, help="bytes for accelerate")
args = parser.parse_args()


def drop_page_cache():
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def shard() -> str:
    return str(max(pathlib.Path(args.model).glob("*.safetensors"), key=lambda p: p.stat().st_size))


def one(name: str, command: list[str], limit: int | None) -> dict | None:
    drop_page_cache()
    status, out, err, peak, seconds = cgroup.run(command, limit)
    if status != 0:
        print(f"{name}: failed with status {status}\n{err[-600:]}", file=sys.stderr)
        return None
    result = json.loads(out)
    result["cgroup_peak_bytes"] = peak
    result["whole_seconds"] = seconds
    print(f"{name}: {result['seconds_per_token']:.3f} s/token", file=sys.stderr)
    return result


def commands(streamed: bool):
    common = ["--ids", PROMPT, "--max-new-tokens", str(args.new_tokens)]
    hf = [sys.executable, str(HERE / "hf_run.py"), args.model, *common]
    ours = [args.outsize, "run", args.model, *common, "--ignore-eos", "--json"]
    if streamed:
        ours += ["--max-memory", f"cpu={args.budget}"]
        hf += ["--max-memory", args.budget, "--offload-dir", str(pathlib.Path(args.model).resolve().parent)]
        return {"outsize": (ours, args.cgroup), "accelerate": (hf, args.accelerate_cgroup)}
    return {"outsize": (ours, None), "torch": (hf, None)}


def main():
    streamed = args.mode == "streamed"
    runs: dict[str, list[dict]] = {}
    speeds, failures = [], {}
    shape = disk.best_shape(shard())
    for _ in range(args.rounds):
        for name, (command, limit) in commands(streamed).items():
            drop_page_cache()
            if name == "outsize":
                speeds.append(disk.sustained(shard(), shape))
            result = one(name, command, limit)
            runs.setdefault(name, [])
            if result:
                runs[name].append(result)
            else:
                failures[name] = failures.get(name, 0) + 1
            if name == "outsize":
                speeds.append(disk.sustained(shard(), shape))

    def median(name: str, field: str) -> float:
        return statistics.median(run[field] for run in runs[name])

    versions = subprocess.run(
        [sys.executable, "-c", "import torch,transformers,accelerate as a;print(f'torch {torch.__version__}, transformers {transformers.__version__}, accelerate {a.__version__}')"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    print(f"{os.cpu_count()} CPUs; {versions}; batch 1, prompt of 32 tokens, {args.new_tokens} new; medians of {args.rounds} rounds, interleaved, page cache dropped")
    for name, count in failures.items():
        print(f"{name}: {count} of {args.rounds} runs failed or did not end in 240 s, and are left out")
    print(f"direct reads of the disk, 3 s before and after each run of outsize, {shape[0]} of {shape[1] >> 20} MiB in flight: {statistics.median(speeds) / 1e9:.2f} GB/s (least {min(speeds) / 1e9:.2f}, most {max(speeds) / 1e9:.2f})\n")
    print("| | " + " | ".join(runs) + " |")
    print("|---|" + "---|" * len(runs))

    def row(title: str, cell):
        print(f"| {title} | " + " | ".join(cell(name) for name in runs) + " |")

    row("seconds per token", lambda n: f"{median(n, 'seconds_per_token'):.3f}")
    row("prefill of 32, s", lambda n: f"{median(n, 'prefill_seconds'):.2f}")
    row("load, s", lambda n: f"{median(n, 'load_seconds'):.2f}")
    row("start of the process to first token, s", lambda n: f"{median(n, 'first_token_seconds'):.2f}")
    row("peak resident set, MB", lambda n: f"{median(n, 'peak_rss_bytes') / 1e6:.0f}")
    if streamed:
        row("cgroup limit, MB", lambda n: f"{commands(True)[n][1] / 1e6:.0f}")
        row("cgroup peak, MB", lambda n: f"{median(n, 'cgroup_peak_bytes') / 1e6:.0f}")
        link = median("outsize", "link_bytes_per_second")
        print(f"\noutsize reads {link / 1e9:.2f} GB/s while decoding: {link / statistics.median(speeds):.0%} of the disk's speed")
        print(f"(its own measure of the disk right after each run: {median('outsize', 'link_utilisation'):.0%})")
    if "outsize" in runs and len(runs) == 2:
        other = next(name for name in runs if name != "outsize")
        ratio = median(other, "seconds_per_token") / median("outsize", "seconds_per_token")
        print(f"\noutsize is {ratio:.2f} times as fast per token as {other}")
        same = runs["outsize"][0]["tokens"] == runs[other][0]["tokens"]
        print(f"the same tokens: {'yes' if same else 'no (outsize keeps activations in f32, torch rounds them to bf16)'}")


main()
