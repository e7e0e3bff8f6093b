"""Runs the models of Accelerate's demonstrations in a fraction of their size, and accelerate beside it; prints a table for each.

    python bench/demonstrations.py FOLDER                  # all of them, one checkpoint at a time in FOLDER, removed afterwards
    python bench/demonstrations.py FOLDER --only t0pp

Checkpoints have random weights of the published shapes (`outsize synth`); those of OPT are then written by torch.save, as it was
published. Every run is in a memory cgroup of its own, which counts the page cache and begins with an empty one. Needs root, torch,
transformers, accelerate, safetensors, and 50 GB of disk: accelerate writes a second copy of what it offloads.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import cgroup
import contenders
import disk
from contenders import Task

HERE = pathlib.Path(__file__).parent
BESIDE = 40_000_000  # bytes of the cgroup beyond the budget
# name: dtype, budget, whether torch.save writes it
DEMONSTRATIONS = {
    "gpt-j-6b": ("f16", 1_000_000_000, False),
    "t0pp": ("bf16", 1_500_000_000, False),
    "opt-6.7b": ("f16", 1_000_000_000, True),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--only", nargs="+", choices=DEMONSTRATIONS, default=list(DEMONSTRATIONS))
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--new-tokens", type=int, default=5)
parser.add_argument("--rounds", type=int, default=2, help="runs of outsize")
parser.add_argument("--roomy", type=int, default=4_000_000_000, help="a larger cgroup for accelerate, of the same budget of weights")
parser.add_argument("--timeout", type=float, default=240, help="seconds after which a run is given up")
parser.add_argument("--without-accelerate", action="store_true")
args = parser.parse_args()


def write_with_torch(model: pathlib.Path):
    """Rewrites the shards as pytorch_model-*.bin."""
    import safetensors.torch
    import torch

    index = json.loads((model / "model.safetensors.index.json").read_text())
    names = {}
    for shard in sorted(model.glob("*.safetensors")):
        file = "pytorch_" + shard.stem + ".bin"
        tensors = safetensors.torch.load_file(shard)
        torch.save(tensors, model / file)
        names.update(dict.fromkeys(tensors, file))
        del tensors
        shard.unlink()
    (model / "model.safetensors.index.json").unlink()
    (model / "pytorch_model.bin.index.json").write_text(json.dumps({**index, "weight_map": names}))


def make(model: pathlib.Path, dtype: str, by_torch: bool):
    name = model.name
    print(f"{name}: making it", file=sys.stderr)
    shard = ["--max-shard-size", "2GB"]
    subprocess.run([args.outsize, "synth", name, model, "--dtype", dtype, *shard], check=True, stdout=subprocess.DEVNULL)
    if by_torch:
        write_with_torch(model)


def demonstrate(model: pathlib.Path, budget: int):
    subprocess.run([args.outsize, "bench", "--calibrate", model], check=True, stdout=subprocess.DEVNULL)
    files = [path for pattern in ("*.safetensors", "*.bin") for path in model.glob(pattern)]
    largest = str(max(files, key=lambda path: path.stat().st_size))
    disk.drop_page_cache()
    shape = disk.best_shape(largest)
    size, limit = sum(path.stat().st_size for path in files), budget + BESIDE
    task = Task(args.new_tokens, budget=budget)
    ours, theirs = contenders.outsize(args.outsize, model), contenders.torch(model, "accelerate")

    print(f"\n**{model.name}**, {size / 1e9:.1f} GB as {files[0].suffix}, in {budget / 1e9:.1f} GB; prompt of 32 tokens, {args.new_tokens} new\n")
    print("| | seconds a token | predicted | disk while decoding | of its speed | start to first token, s | peak resident set, MB | peak of the cgroup, MB |")
    print("|---|---|---|---|---|---|---|---|")
    tokens = None
    for _ in range(args.rounds):
        before = disk.sustained(largest, shape)
        result = contenders.run(ours, task, limit, args.timeout)
        speed = (before + disk.sustained(largest, shape)) / 2
        row(f"outsize in {limit / 1e6:.0f} MB", result, speed)
        tokens = result.get("tokens", tokens)
    if args.without_accelerate:
        return
    same = None
    for memory in (limit, args.roomy):
        if shutil.disk_usage(args.folder).free < 1.1 * size:
            result = {"failed": "no room on the disk for its copy"}
        else:
            result = contenders.run(theirs, task, memory, args.timeout)
        row(f"accelerate in {memory / 1e6:.0f} MB", result)
        if "tokens" in result:
            same = result["tokens"] == tokens
    if same is not None:
        print(f"\naccelerate, which rounds activations to the type of the weights, generates {'the same' if same else 'other'} tokens")


def row(title: str, result: dict, speed: float | None = None):
    if "failed" in result:
        print(f"| {title} | {result['failed']} | | | | | | |", flush=True)
        return
    cells = [f"{result['seconds_per_token']:.2f}", "", "", ""]
    if speed:
        predicted, read = result["prediction"]["decode"]["seconds"], result["link_bytes_per_second"]
        cells[1] = f"{predicted:.2f} ({predicted / result['seconds_per_token'] - 1:+.0%})"
        cells[2:] = [f"{read / 1e9:.2f} of {speed / 1e9:.2f} GB/s", f"{read / speed:.0%}"]
    cells += [f"{result['first_token_seconds']:.1f}"]
    cells += [f"{result[key] / 1e6:.0f}" for key in ("peak_rss_bytes", "cgroup_peak_bytes")]
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


if not cgroup.available():
    sys.exit("memory cgroups of version 1 cannot be made here: run as root on a system that has them")
args.folder.mkdir(parents=True, exist_ok=True)
print("; ".join([f"{os.cpu_count()} CPUs", contenders.versions("torch", "transformers", "accelerate")]))
os.environ["OUTSIZE_CACHE"] = str(args.folder / "cache")
for name in args.only:
    dtype, budget, by_torch = DEMONSTRATIONS[name]
    # What a run that was killed leaves behind goes with it.
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        model = pathlib.Path(folder) / name
        make(model, dtype, by_torch)
        demonstrate(model, budget)
