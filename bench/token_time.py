"""Prints where the time of a token goes, with everything in memory and with budgets of 50 and 10 % of the weights.

    python bench/token_time.py MODEL [--context 256] [--compute bf16]

Samples `outsize run` with perf while it decodes, on all of its threads, and groups the samples by function: the release binary has the
names. Tensor operations that are not outsize's own count for what called them, where perf can tell. What no thread was running for is idle.
Needs perf, and permission to use it.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
HERTZ = 499

# Bytes of the stack that are kept of each sample, to find its callers in.
STACK = 16384

# The first that fits a sample's function or library counts.
GROUPS = [
    ("attention", r"attention|attend|softmax|kv_cache"),
    ("norms", r"rms_norm|RmsNorm|kernels::norm::"),
    ("gates", r"kernels::gate::"),
    ("rotary embedding", r"rope|Rotation|rotary"),
    ("sharing work among threads", r"rayon|crossbeam|kernels::team"),
    ("products", r"outsize_kernels"),
    ("streaming", r"outsize_stream|outsize_core"),
    ("other tensor operations", r"burn|cubecl|outsize_models|macerator|matmul|gemm"),
    ("sampling", r"outsize_generate"),
    ("allocating and copying", r"malloc|free|realloc|calloc|memcpy|memmove|memset|libc\.so"),
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--context", type=int, default=64, help="tokens before the first one that is looked at")
parser.add_argument("--new-tokens", type=int, default=33)
parser.add_argument("--shares", type=int, nargs="*", default=[50, 10], help="budgets beside everything, in percent of the weights")
parser.add_argument("--compute", default="f32", choices=["f32", "bf16"])
parser.add_argument("--top", type=int, default=0, help="also print so many functions of each budget")
args = parser.parse_args()


def own_group(function: str, library: str) -> str:
    if library.startswith("[") or function.startswith("[k]"):
        return "kernel"
    for name, pattern in GROUPS:
        if re.search(pattern, f"{function} {library}"):
            return name
    return "rest"


def group(frames: list[tuple[str, str]]) -> str:
    """The group of a sample: of its innermost function, or for tensor operations of others that of the nearest caller of ours."""
    own = own_group(*frames[0])
    if own == "other tensor operations":
        for function, library in frames[1:]:
            caller = own_group(function, library)
            if caller in ("attention", "norms", "gates", "rotary embedding", "products", "sampling"):
                return caller
    return own


def record(budget: str | None):
    """The run's report, and the (function, library) of the frames of each sample that was taken while it decoded."""
    ids = ",".join(str(300 + 7 * i) for i in range(args.context))
    command = [args.outsize, "run", str(args.model), "--ids", ids, "--max-new-tokens", str(args.new_tokens)]
    command += ["--ignore-eos", "--json", "--prompt-again", "0", "--compute", args.compute]
    command += ["--max-memory", budget] if budget else []
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf.data"
        perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "--call-graph", f"dwarf,{STACK}", "-o", data, "--", *command]
        done = subprocess.run(perf, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(perf)}: {done.stderr.strip()[-600:]}")
        script = ["perf", "script", "-i", data, "-F", "time,ip,sym,dso"]
        lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    report = json.loads(done.stdout)
    samples = []
    for line in lines:
        # `1234.567890:` and then a line for each frame: `   55d0c0 some::function (/path/to/library)`
        if begins := re.match(r"\s*([\d.]+):", line):
            samples.append((float(begins[1]), []))
        elif (frame := re.match(r"\s+[0-9a-f]+ (.*) \((.*)\)\s*$", line)) and samples:
            samples[-1][1].append((frame[1], frame[2]))
    if not samples:
        sys.exit("perf took no samples")
    # The first sample is taken as the process begins.
    begin = samples[0][0] + report["first_token_seconds"]
    end = begin + report["decode_seconds"]
    return report, [frames for time, frames in samples if frames and begin <= time <= end]


def threads() -> int:
    env = json.loads(subprocess.run([args.outsize, "env", "--json"], capture_output=True, text=True, check=True).stdout)
    return env["machine"]["processors"]["threads"]["value"]


def main():
    weights = sum(path.stat().st_size for path in args.model.glob("*.safetensors"))
    cases = [("all in memory", None)] + [(f"{share} %", f"cpu={weights * share // 100}B") for share in args.shares]
    processors = threads()
    columns, heads, tops = [], [], []
    for name, budget in cases:
        report, samples = record(budget)
        tokens = args.new_tokens - 1
        wall = report["decode_seconds"] / tokens
        of_group = collections.Counter(group(sample) for sample in samples)
        # Milliseconds of one token, all threads together, and what is left of them.
        busy = {key: count / HERTZ / tokens for key, count in of_group.items()}
        busy["idle"] = max(processors * wall - sum(busy.values()), 0.0)
        columns.append((busy, wall, report["waiting_for_data_seconds"] / report["decode_seconds"]))
        heads.append(name)
        tops.append(collections.Counter(sample[0] for sample in samples).most_common(args.top))
    print(f"{processors} threads, prompt of {args.context} tokens, {args.new_tokens - 1} after the first, activations in {args.compute}; shares of the threads' time\n")
    print("| | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * len(heads))
    print("| a token, ms | " + " | ".join(f"{wall * 1e3:.1f}" for _, wall, _ in columns) + " |")
    for name in [name for name, _ in GROUPS] + ["rest", "kernel", "idle"]:
        cells = [busy.get(name, 0.0) / (processors * wall) for busy, wall, _ in columns]
        print(f"| {name} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")
    print("| computing waits for weights, of the wall time | " + " | ".join(f"{waiting:.1%}" for *_, waiting in columns) + " |")
    for head, top in zip(heads, tops):
        if top:
            print(f"\n{head}:\n")
        for (function, library), count in top:
            print(f"    {count / HERTZ / (args.new_tokens - 1) * 1e3:7.2f} ms  {function[:100]}  {pathlib.Path(library).name}")


main()
