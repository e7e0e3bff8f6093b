"""Times steps of training of a small Llama in outsize and in torch, in turns, and prints one table of medians.

    python bench/training.py                                # 8 sequences of 256 tokens, f32 and bf16, two threads
    python bench/training.py --computes f32 --rounds 5
    python bench/training.py --profile                      # where outsize's time goes, by groups of functions (needs perf)

The model is that of training.json, 7.9 M parameters; a step is the forward pass with the loss, the backward pass, and AdamW. Each round
starts both programs anew, and leaves their first steps out. With bf16, both keep weights in f32 and multiply in bf16. Needs torch and
transformers, and `cargo build --release --workspace --examples`.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
LEFT_OUT = 2
PARTS = ["forward", "backward", "update"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--config", type=pathlib.Path, default=HERE / "training.json")
parser.add_argument("--step", default=str(HERE.parent / "target/release/examples/training_step"), help="the example of that name")
parser.add_argument("--rows", type=int, default=8)
parser.add_argument("--tokens", type=int, default=256)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--computes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
parser.add_argument("--profile", action="store_true")
args = parser.parse_args()

# The first that fits a sample's function counts.
GROUPS = [
    ("attention", r"attention|attend|softmax_gradient"),
    ("matmuls", r"outsize_kernels::matmul"),
    ("norms", r"outsize_kernels::(gradient::)?norm"),
    ("gates", r"outsize_kernels::(gradient::)?activation"),
    ("loss", r"cross_entropy"),
    ("other kernels", r"outsize_kernels"),
    ("tensor operations of Burn", r"burn|macerator"),
    ("allocating and copying", r"malloc|free|mem(cpy|move|set)|libc"),
    ("kernel of the system", r"^\[k\]|\[kernel"),
]


def command(compute: str) -> list[str]:
    return [str(args.config), str(args.rows), str(args.tokens), compute, str(args.steps)]


def run(program: list[str], compute: str) -> list[list[float]]:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
    done = subprocess.run([*program, *command(compute)], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["seconds"][LEFT_OUT:]


def profile(compute: str):
    with tempfile.TemporaryDirectory() as folder:
        record = ["perf", "record", "-F", "499", "-o", f"{folder}/perf.data", args.step, *command(compute)]
        environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
        subprocess.run(record, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        script = ["perf", "script", "-i", f"{folder}/perf.data", "-F", "ip,sym,dso"]
        samples = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    groups, functions = collections.Counter(), collections.Counter()
    for sample in filter(None, map(str.strip, samples.splitlines())):
        function = sample.split(None, 1)[-1]
        groups[next((name for name, pattern in GROUPS if re.search(pattern, function)), "rest")] += 1
        functions[function] += 1
    total = sum(groups.values())
    for name, count in [*groups.most_common(), ("", 0), *functions.most_common(25)]:
        print(f"{100 * count / total:5.1f} %  {name}" if name else "")


def main():
    contenders = {
        "outsize": [args.step],
        "torch": [sys.executable, str(HERE / "hf_train.py"), "--threads", str(args.threads)],
    }
    tokens = args.rows * args.tokens
    print(f"{args.rows} sequences of {args.tokens} tokens, {args.threads} threads, medians of {args.rounds} rounds\n")
    print("| | step, ms | " + " | ".join(f"{part}, ms" for part in PARTS) + " | tokens/s |")
    print("|---|" + "---|" * (len(PARTS) + 2))
    for compute in args.computes:
        steps = {name: [] for name in contenders}
        for _ in range(args.rounds):
            for name, program in contenders.items():
                steps[name] += run(program, compute)
        whole = {name: statistics.median(map(sum, of)) for name, of in steps.items()}
        for name, of in steps.items():
            parts = [f"{1e3 * statistics.median(part):.0f}" for part in zip(*of)]
            print(f"| {name}, {compute} | {1e3 * whole[name]:.0f} | " + " | ".join(parts) + f" | {tokens / whole[name]:.0f} |")
        print(f"| torch's step over outsize's, {compute} | {whole['torch'] / whole['outsize']:.2f} |" + " |" * (len(PARTS) + 1), flush=True)


for compute in args.computes if args.profile else []:
    profile(compute)
if not args.profile:
    main()
