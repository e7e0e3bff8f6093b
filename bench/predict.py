"""Compares the speed that `outsize run` predicts with what it then measures, and prints tables.

    python bench/predict.py MODEL [MODEL ...]

Each MODEL is a folder, such as `outsize synth llama-1b MODEL --dtype bf16` makes. The machine is measured first (`outsize bench
--calibrate`), into a cache folder of its own. Then each model runs once for each prompt, compute type and budget: all of its weights in
memory, half of them, and a fifth.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).parent
BESIDE = 200_000_000  # bytes of a budget for the KV cache, activations and the process

parser = argparse.ArgumentParser()
parser.add_argument("models", nargs="+", type=pathlib.Path)
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--prompts", nargs="+", type=int, default=[32, 256, 1000, 4000])
parser.add_argument("--compute", nargs="+", default=["f32", "bf16"])
parser.add_argument("--shares", nargs="+", type=float, default=[1.1, 0.5, 0.2])
parser.add_argument("--new-tokens", type=int, default=5)
parser.add_argument("--pause", type=float, default=10, help="seconds before each run, in which the host of a virtual machine takes back freed memory")
args = parser.parse_args()


def run(model, prompt, compute, budget, environment):
    ids = ",".join(str(300 + 7 * i % 5000) for i in range(prompt))
    command = [args.outsize, "run", model, "--ids", ids, "--max-new-tokens", str(args.new_tokens), "--ignore-eos", "--json"]
    command += ["--compute", compute, "--max-memory", f"cpu={budget}"]
    time.sleep(args.pause)
    out = subprocess.run(command, env=environment, capture_output=True, text=True)
    return json.loads(out.stdout) if out.returncode == 0 else out.stderr.strip().splitlines()[-1]


def off(predicted, measured):
    return predicted / measured - 1


with tempfile.TemporaryDirectory() as cache:
    environment = {**os.environ, "OUTSIZE_CACHE": cache}
    calibrate = [args.outsize, "bench", "--calibrate", args.models[0]]
    subprocess.run(calibrate, env=environment, check=True, stdout=subprocess.DEVNULL)
    print(f"{os.cpu_count()} CPUs; {args.new_tokens} new tokens, one run each, after a calibration\n")
    print("| model | prompt | compute | budget | resident | first pass, predicted | measured | off | s per token, predicted | measured | off |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    prompts, tokens = {}, []
    for model, prompt, compute, share in itertools.product(args.models, args.prompts, args.compute, args.shares):
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        budget = int(weights * share) + BESIDE
        result = run(model, prompt, compute, budget, environment)
        cells = [model.name, str(prompt), compute, f"{budget / 1e6:.0f} MB"]
        if isinstance(result, str):
            print(f"| {' | '.join(cells)} | {result} |", flush=True)
            continue
        placement, prediction = result["placement"], result["prediction"]
        cells.append(f"{placement['resident_bytes'] / placement['total_bytes']:.0%}")
        same = prompts.setdefault((model.name, prompt), [])
        for predicted, measured, all_of_them in [
            (prediction["first_pass_seconds"], result["prefill_seconds"], same),
            (prediction["decode"]["seconds"], result["seconds_per_token"], tokens),
        ]:
            all_of_them.append(off(predicted, measured))
            cells += [f"{predicted:.3f}", f"{measured:.3f}", f"{off(predicted, measured):+.0%}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    print("\n| model | prompt | first pass off, median | most |\n|---|---|---|---|")
    for (model, prompt), same in prompts.items():
        print(f"| {model} | {prompt} | {statistics.median(map(abs, same)):.0%} | {max(map(abs, same)):.0%} |")
    for name, all_of_them in [("first passes", itertools.chain(*prompts.values())), ("tokens", tokens)]:
        sizes = [abs(one) for one in all_of_them]
        print(f"\n{name}: {len(sizes)} predictions, off by {statistics.median(sizes):.0%} (median), {max(sizes):.0%} (most)")
