"""Prints what packing bf16 gains: a model as it is beside the same model packed, in turns.

    outsize shard MODEL PACKED --pack
    python bench/packed.py MODEL PACKED [--budgets 600MB 1GB 4GB]

Greedy; medians of the rounds; the tokens are compared.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("packed", type=pathlib.Path)
parser.add_argument("--outsize", default=str(pathlib.Path(__file__).parent.parent / "target/release/outsize"))
parser.add_argument("--budgets", nargs="+", default=["600MB", "1GB", "4GB"])
parser.add_argument("--compute", nargs="+", default=["f32", "bf16"])
parser.add_argument("--prompt-tokens", type=int, default=512)
parser.add_argument("--new-tokens", type=int, default=24)
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()

IDS = ",".join(str(7 + token * 31 % 500) for token in range(args.prompt_tokens))


def run(model: pathlib.Path, budget: str, compute: str) -> dict:
    command = [args.outsize, "run", str(model), "--ids", IDS, "--json", "--ignore-eos", "--max-memory", f"cpu={budget}", "--temperature", "0"]
    command += ["--max-new-tokens", str(args.new_tokens), "--compute", compute]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return json.loads(result.stdout)


def size(model: pathlib.Path) -> float:
    return sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e9


print(f"{size(args.model):.2f} GB, packed {size(args.packed):.2f} GB: {size(args.packed) / size(args.model):.1%}\n")
print("| budget | `--compute` | ms a token | packed | times as fast | prompt, s | packed | peak MB | packed |")
print("|---|---|---|---|---|---|---|---|---|")
for budget in args.budgets:
    for compute in args.compute:
        found: list[list[dict]] = [[], []]
        for _ in range(args.rounds):
            for runs, model in zip(found, [args.model, args.packed]):
                runs.append(run(model, budget, compute))
        if len({tuple(run["tokens"]) for runs in found for run in runs}) != 1:
            sys.exit("the tokens differ")
        token, prompt = (
            [statistics.median(run[field] for run in runs) for runs in found] for field in ["decode_seconds", "prefill_seconds"]
        )
        peak = [max(run["peak_rss_bytes"] for run in runs) / 1e6 for runs in found]
        token = [1000 * seconds / (args.new_tokens - 1) for seconds in token]
        print(
            f"| {budget} | {compute} | {token[0]:.0f} | {token[1]:.0f} | {token[0] / token[1]:.2f} "
            f"| {prompt[0]:.2f} | {prompt[1]:.2f} | {peak[0]:.0f} | {peak[1]:.0f} |",
            flush=True,
        )
