"""How fast a mixture of experts decodes under budgets, and what a token reads: a table.

    python bench/experts.py MODEL

MODEL is a folder made by `outsize synth olmoe-1b-7b MODEL`, `outsize synth deepseek-v2-lite MODEL --dtype fp8` (or `qwen3.5-35b-a3b`) or `outsize synth
gpt-oss-20b MODEL --dtype mxfp4`. With random weights all
tokens go to nearly the same experts, so the table of embeddings in MODEL is multiplied by 64 first, unless it was before: then tokens,
which are drawn at random, go to different ones. How often real texts go to the same experts again is not measured: such models need other weights.

Every run is in a memory cgroup of its budget + 40 MB (version 1, as root) that counts the page cache. "If evenly chosen" is what a token
would read of the disk if all experts were chosen equally often; the disk's own speed is that which the run measured before it.
"""

import argparse
import json
import pathlib
import struct
import sys

import cgroup

HERE = pathlib.Path(__file__).parent
SPREAD = 64
PROMPT = ",".join(str(7 * i % 5000 + 5) for i in range(32))

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--budgets", nargs="+", default=["1GB", "4GB", "8GB", "12GB", "16GB"])
parser.add_argument("--new-tokens", type=int, default=100)
parser.add_argument("--accelerate", help="a budget for transformers with accelerate: of so much, 1 GB is left to everything but weights")
args = parser.parse_args()


def spread_embeddings(folder: pathlib.Path):
    """Multiplies the bf16 table of embeddings by a power of two, in place, unless it was."""
    for path in folder.glob("*.safetensors"):
        with path.open("r+b") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            table = json.loads(file.read(length)).get("model.embed_tokens.weight")
            if not table:
                continue
            assert table["dtype"] == "BF16", "the table must be in bf16"
            begin, end = table["data_offsets"]
            file.seek(8 + length + begin)
            values = memoryview(bytearray(file.read(end - begin))).cast("H")
            exponents = [value >> 7 & 0xFF for value in values[: 1 << 16]]
            # Drawn with a deviation of 0.02, few are above 0.1.
            if sum(exponents) / len(exponents) > 123:
                return
            steps = SPREAD.bit_length() - 1
            for at, value in enumerate(values):
                if value >> 7 & 0xFF:
                    values[at] = value + (steps << 7)
            file.seek(8 + length + begin)
            file.write(values.cast("B"))


def gigabytes_if_even(report) -> float:
    routed, rest = 0, 0
    for block in report["placement"]["blocks"]:
        of_experts = block.get("routed", {"streamed": 0, "kept": 0})
        routed += of_experts["streamed"] - of_experts["kept"]
        rest += block["streamed_bytes"] - block["kept_bytes"] - of_experts["streamed"] + of_experts["kept"]
    return (rest + routed * per_token / experts) / 1e9


def run_accelerate(budget: str):
    limit = int(float(budget.removesuffix("GB")) * 1e9)
    command = [sys.executable, str(HERE / "hf_run.py"), args.model, "--ids", PROMPT, "--max-new-tokens", "9"]
    command += ["--max-memory", f"{limit / 1e9 - 1}GB", "--offload-dir", str(folder.parent)]
    status, out, err, peak, _ = cgroup.run(command, limit + 40_000_000, timeout=580)
    if status:
        raise SystemExit(err)
    report = json.loads(out)
    print(
        f"| accelerate, {budget}, greedily | {report['seconds_per_token'] * 1e3:.0f} | | | {report['prefill_seconds']:.1f}, "
        f"loaded in {report['load_seconds']:.0f} | {peak / 1e6:.0f} |"
    )


folder = pathlib.Path(args.model)
spread_embeddings(folder)
config = json.loads((folder / "config.json").read_text())
named = ("num_experts", "num_local_experts", "n_routed_experts")
per_token, experts = config["num_experts_per_tok"], next(config[name] for name in named if name in config)
print(f"{per_token} of {experts} experts a token; {args.new_tokens} tokens drawn behind a prompt of 32\n")
print("| budget | ms a token | GB read a token (if evenly chosen) | GB/s, and of the disk's | prompt, s | peak MB |")
print("|---|---|---|---|---|---|")
for budget in args.budgets:
    limit = int(float(budget.removesuffix("GB")) * 1e9)
    command = [args.outsize, "run", args.model, "--ids", PROMPT, "--max-new-tokens", str(args.new_tokens), "--temperature", "3"]
    command += ["--max-memory", f"cpu={budget}", "--json"]
    status, out, err, peak, _ = cgroup.run(command, limit + 40_000_000)
    if status:
        raise SystemExit(err)
    report = json.loads(out)
    tokens = args.new_tokens - 1
    read = report["decode_bytes_read"] / tokens / 1e9
    speed = read / report["seconds_per_token"]
    disk = (report["disk_bytes_per_second"] or float("nan")) / 1e9
    print(
        f"| {budget} | {report['seconds_per_token'] * 1e3:.0f} | {read:.2f} ({gigabytes_if_even(report):.2f}) "
        f"| {speed:.2f}, {speed / disk:.0%} | {report['prefill_seconds']:.1f} | {peak / 1e6:.0f} |",
        flush=True,
    )
if args.accelerate:
    run_accelerate(args.accelerate)
