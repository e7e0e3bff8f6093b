"""Prints what quantising costs and gains: a model as it is, and as integers, in turns.

    python bench/quantize.py MODEL FOLDER [--texts TEXTS.jsonl] [--held-out OTHERS.jsonl] [--budgets 600MB 4GB]

It makes the quantised checkpoints in FOLDER, those that are not there yet: int4 and int8, with TEXTS int4 chosen by them too. Of
texts that were held back it says how far predictions are from those of MODEL (Kullback-Leibler divergence, nats a token) and the
loss. Greedy; medians of the rounds. Needs numpy, safetensors and tokenizers.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file
from tokenizers import Tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--outsize", default=str(pathlib.Path(__file__).parent.parent / "target/release/outsize"))
parser.add_argument("--texts", type=pathlib.Path)
parser.add_argument("--held-out", type=pathlib.Path)
parser.add_argument("--context", type=int, default=256)
parser.add_argument("--windows", type=int, default=32)
parser.add_argument("--budgets", nargs="*", default=["600MB", "4GB"])
parser.add_argument("--prompt-tokens", type=int, default=512)
parser.add_argument("--new-tokens", type=int, default=24)
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()


def outsize(*command) -> dict | None:
    result = subprocess.run([args.outsize, *map(str, command)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")
    return json.loads(result.stdout) if result.stdout.startswith("{") else None


def size(model: pathlib.Path) -> float:
    return sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e6


KINDS = {
    "int4": [],
    "int4, groups of 128": ["--group-size", "128"],
    "int8": ["--dtype", "int8"],
}
if args.texts:
    with_texts = ["--texts", str(args.texts), "--context", str(args.context)]
    KINDS |= {f"{kind}, texts": [*options, *with_texts] for kind, options in list(KINDS.items())[:2]}
models = {"as it is": args.model}
args.folder.mkdir(parents=True, exist_ok=True)
print("| | MB | made in, s | peak MB |")
print("|---|---|---|---|")
print(f"| as it is | {size(args.model):.1f} | | |")
for kind, options in KINDS.items():
    models[kind] = args.folder / kind.replace(", ", "-").replace(" ", "-")
    if models[kind].exists():
        print(f"| {kind} | {size(models[kind]):.1f} | | |")
        continue
    made = outsize("quantize", args.model, models[kind], "--json", *options)
    print(f"| {kind} | {size(models[kind]):.1f} | {made['seconds']:.1f} | {made['peak_rss_bytes'] / 1e6:.0f} |", flush=True)

if args.held_out:
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    texts = (json.loads(line)["text"] for line in args.held_out.read_text().splitlines())
    ids = [token for text in texts for token in tokenizer.encode(text).ids]
    windows = [ids[at : at + args.context] for at in range(0, len(ids) - args.context, args.context)][: args.windows]

    def predictions(model: pathlib.Path, window: list[int]) -> numpy.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "logits.safetensors"
            outsize("logits", model, "--ids", ",".join(map(str, window)), "--output", file)
            logits = load_file(file)["logits"].reshape(len(window), -1).astype(numpy.float64)
        logits -= logits.max(1, keepdims=True)
        return logits - numpy.log(numpy.exp(logits).sum(1, keepdims=True))

    wanted = [predictions(args.model, window) for window in windows]
    print(f"\n{len(windows)} windows of {args.context} tokens that were held back\n\n| | divergence | loss |\n|---|---|---|")
    for kind, model in models.items():
        apart, loss = [], []
        for window, before in zip(windows, wanted):
            found = predictions(model, window)
            apart.append((numpy.exp(before) * (before - found)).sum(1).mean())
            loss.append(-found[numpy.arange(len(window) - 1), window[1:]].mean())
        print(f"| {kind} | {numpy.mean(apart):.5f} | {numpy.mean(loss):.3f} |", flush=True)

if args.budgets:
    prompt = ",".join(str(7 + token * 31 % 500) for token in range(args.prompt_tokens))
    print("\n| budget | | ms a token | prompt, s | peak MB |\n|---|---|---|---|---|")
for budget in args.budgets:
    runs: dict[str, list[dict]] = {kind: [] for kind in models if "texts" not in kind}
    for _ in range(args.rounds):
        for kind, found in runs.items():
            command = ["run", models[kind], "--ids", prompt, "--json", "--ignore-eos", "--temperature", "0"]
            found.append(outsize(*command, "--max-memory", f"cpu={budget}", "--max-new-tokens", args.new_tokens))
    for kind, found in runs.items():
        token, start = (statistics.median(run[field] for run in found) for field in ["decode_seconds", "prefill_seconds"])
        peak = max(run["peak_rss_bytes"] for run in found) / 1e6
        print(f"| {budget} | {kind} | {1000 * token / (args.new_tokens - 1):.1f} | {start:.2f} | {peak:.0f} |", flush=True)
