"""Times steps of LoRA, or of all weights, in outsize, under budgets, and in PEFT or torch, in turns, and prints one table of medians.

    python bench/finetune.py MODEL FOLDER [--full] [--budgets 1GB 6GB] [--rounds 3] [--tokens 512] [--steps 4] [--rank 16]

MODEL is a checkpoint that fits in memory, such as `outsize synth llama-1b MODEL` makes; in FOLDER examples and adapters are written.
A step is one sequence: forward with the loss, backward, and AdamW; adapters are on all linear layers. Each round starts all programs
anew, and leaves the first step out. PEFT runs with all activations kept, and with those of a layer computed again
(`gradient_checkpointing`). With `--full` all weights learn instead: in torch with weights, gradients and moments in f32 (16 bytes
a value of memory), in outsize with f32 weights and moments on the disk of FOLDER (18 bytes a value of a model in bf16). Needs torch, transformers and peft, and `cargo build --release --workspace`.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--budgets", nargs="+", default=["1GB", "6GB"])
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--rank", type=int, default=16)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--full", action="store_true")
args = parser.parse_args()

args.folder.mkdir(parents=True, exist_ok=True)
examples = args.folder / "examples.jsonl"
words = random.Random(0)
with examples.open("w") as file:
    for _ in range(args.steps):
        text = " ".join("".join(words.choices("abcdefghij", k=6)) for _ in range(4 * args.tokens))
        file.write(json.dumps({"text": text}) + "\n")
environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads), "OMP_NUM_THREADS": str(args.threads)}


def ours(budget: str, compute: str) -> tuple[list[float], int]:
    output = args.folder / "adapter"
    for folder in (output, args.folder / "adapter.states"):
        shutil.rmtree(folder, ignore_errors=True)
    command = [args.outsize, "finetune", args.model, examples, "--output", output, "--max-memory", f"cpu={budget}"]
    command += ["--context", args.tokens, "--batch", 1, "--accumulate", 1, "--compute", compute]
    command += ["--full"] if args.full else ["--rank", args.rank]
    done = subprocess.run([*map(str, command)], env=environment, stderr=subprocess.PIPE, text=True, check=True)
    peak = re.search(r"peak memory ([\d.]+) (\w+)", done.stderr)
    unit = {"MB": 1e6, "GB": 1e9}[peak[2]]
    return [float(rate) for rate in re.findall(r"([\d.]+) tokens/s", done.stderr)], int(float(peak[1]) * unit)


def peft(dtype: str, activations: str) -> tuple[list[float], int]:
    rank = 0 if args.full else args.rank
    command = [sys.executable, HERE / "hf_finetune.py", args.model, args.tokens, args.steps, rank, dtype, activations]
    done = subprocess.run([*map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    found = json.loads(done.stdout)
    return found["rates"], found["peak"]


contenders = {f"outsize, cpu={budget}, {compute}": (ours, budget, compute) for compute in ("f32", "bf16") for budget in args.budgets}
theirs, dtypes = ("torch", ["f32"]) if args.full else ("PEFT", ["f32", "bf16"])
contenders |= {f"{theirs}, {dtype}, {how}": (peft, dtype, how) for dtype in dtypes for how in ("kept", "checkpointed")}
rates, peaks = {name: [] for name in contenders}, dict.fromkeys(contenders, 0)
for number in range(args.rounds):
    for name, (run, *how) in contenders.items():
        found, peak = run(*how)
        rates[name] += found[1:]
        peaks[name] = max(peaks[name], peak)
        print(f"round {number + 1}, {name}: {[round(rate, 1) for rate in found]}", file=sys.stderr)
print("| | tokens/s | peak memory, GB |\n|---|---|---|")
for name in contenders:
    print(f"| {name} | {statistics.median(rates[name]):.1f} | {peaks[name] / 1e9:.2f} |")
