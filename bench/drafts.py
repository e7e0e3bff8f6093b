"""Prints what speculative decoding gains, with everything in memory and under a budget, for drafts that are often right and seldom.

    python bench/drafts.py MODEL FOLDER [--budgets 4GB 600MB] [--rest 0.02 0.3]

Weights are random, so no other model would guess their tokens. FOLDER gets a pair for each value of `--rest`: what MODEL's layers behind the
first ones add is scaled by it, and the first layers alone, with the same table and head, are the draft model. The smaller the scale, the
more guesses are right. Greedy, in turns; medians of the rounds; the tokens are compared. Needs torch and safetensors.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

from safetensors import safe_open
from safetensors.torch import save_file

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path, help="a Llama in safetensors")
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--outsize", default=str(pathlib.Path(__file__).parent.parent / "target/release/outsize"))
parser.add_argument("--budgets", nargs="+", default=["4GB", "600MB"])
parser.add_argument("--rest", type=float, nargs="+", default=[0.02, 0.3])
parser.add_argument("--layers", type=int, default=2, help="of the draft model")
parser.add_argument("--draft-tokens", type=int, nargs="+", default=[3, 7, 15])
parser.add_argument("--new-tokens", type=int, default=64)
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()


def pair(rest: float) -> tuple[pathlib.Path, pathlib.Path]:
    """A model, and one of its first layers."""
    target, draft = args.folder / f"target-{rest}", args.folder / f"draft-{rest}"
    if draft.exists():
        return target, draft
    all_tensors, first = {}, {}
    for file in sorted(args.model.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_tensor(name)
                layer = re.match(r"model\.layers\.(\d+)\.", name)
                behind = layer is not None and int(layer[1]) >= args.layers
                if behind and name.endswith(("o_proj.weight", "down_proj.weight")):
                    tensor = (tensor.float() * rest).to(tensor.dtype)
                all_tensors[name] = tensor
                if not behind:
                    first[name] = tensor
    config = json.loads((args.model / "config.json").read_text())
    for folder, tensors, layers in [(target, all_tensors, config["num_hidden_layers"]), (draft, first, args.layers)]:
        folder.mkdir(parents=True)
        for name in ["tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(args.model / name, folder)
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        save_file(tensors, folder / "model.safetensors")
    return target, draft


def run(target: pathlib.Path, budget: str, drafts: list[str]) -> dict:
    command = [args.outsize, "run", str(target), "--prompt", "Once upon a time", "--json", "--ignore-eos", "--max-memory", f"cpu={budget}"]
    command += ["--max-new-tokens", str(args.new_tokens), *drafts]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return json.loads(result.stdout)


print("| budget | draft tokens | guesses that were right | tokens a pass | ms a token | of those without |")
print("|---|---|---|---|---|---|")
for rest in args.rest:
    target, draft = pair(rest)
    for budget in args.budgets:
        ways = {0: []} | {count: ["--draft-model", str(draft), "--draft-tokens", str(count)] for count in args.draft_tokens}
        found: dict[int, list[dict]] = {count: [] for count in ways}
        for _ in range(args.rounds):
            for count, drafts in ways.items():
                found[count].append(run(target, budget, drafts))
        texts = {tuple(run["tokens"]) for runs in found.values() for run in runs}
        if len(texts) != 1:
            sys.exit("the tokens differ")
        times = {count: statistics.median(run["decode_seconds"] / (args.new_tokens - 1) for run in runs) for count, runs in found.items()}
        for count, seconds in times.items():
            stats = found[count][0].get("drafts")
            right = f"{stats['accepted'] / max(stats['drafted'], 1):.0%}" if stats else "-"
            a_pass = f"{(stats['passes'] + stats['accepted']) / stats['passes']:.1f}" if stats else "1"
            print(f"| {budget} | {count or 'none'} | {right} | {a_pass} | {seconds * 1000:.0f} | {seconds / times[0]:.2f} |", flush=True)
