"""Compares the speed that `outsize run` predicts with what it then measures, and prints a table of medians.

    python bench/predict.py MODEL

MODEL is a folder made by `outsize synth llama-1b MODEL --dtype bf16`. The machine is measured first (`outsize bench --calibrate`), into a
cache folder of its own; then a model that is resident, half and mostly streamed runs in turns.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
PROMPT = ",".join(str(300 + 7 * i) for i in range(32))

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--new-tokens", type=int, default=17)
parser.add_argument("--budgets", nargs="+", default=["2600MB", "1200MB", "600MB"])
args = parser.parse_args()

with tempfile.TemporaryDirectory() as cache:
    environment = {**os.environ, "OUTSIZE_CACHE": cache}
    calibrate = [args.outsize, "bench", "--calibrate", args.model]
    subprocess.run(calibrate, env=environment, check=True, stdout=subprocess.DEVNULL)
    runs = {budget: [] for budget in args.budgets}
    for _ in range(args.rounds):
        for budget in args.budgets:
            command = [args.outsize, "run", args.model, "--ids", PROMPT, "--max-new-tokens", str(args.new_tokens)]
            command += ["--ignore-eos", "--json", "--max-memory", f"cpu={budget}"]
            out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            runs[budget].append(json.loads(out))

print(f"{os.cpu_count()} CPUs; prompt of 32 tokens, {args.new_tokens} new; medians of {args.rounds} rounds, in turns\n")
print("| budget | resident | s per token, predicted | measured | off | first pass, predicted | measured |")
print("|---|---|---|---|---|---|---|")
for budget, results in runs.items():
    placement, prediction = results[0]["placement"], results[0]["prediction"]
    share = placement["resident_bytes"] / placement["total_bytes"]
    predicted = prediction["decode"]["seconds"]
    measured = statistics.median(result["seconds_per_token"] for result in results)
    prefill = statistics.median(result["prefill_seconds"] for result in results)
    print(
        f"| {budget} | {share:.0%} | {predicted:.3f} | {measured:.3f} | {predicted / measured - 1:+.0%} "
        f"| {prediction['first_pass_seconds']:.2f} | {prefill:.2f} |"
    )
