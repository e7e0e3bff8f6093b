"""What a token costs behind texts of several lengths, with attention as in DeepSeek-V3.2, of 2,048 tokens that an indexer chooses,
and as in DeepSeek-V3, of all: two layers of each in the published sizes, with few and small experts, of random weights.

    cargo build --release; python bench/sparse_attention.py WORK [LENGTH ...]

WORK gets the checkpoints. Both models run in turns.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTSIZE = ROOT / "target/release/outsize"
NEW_TOKENS = 8


def model(work, name):
    """A checkpoint of random weights in bf16."""
    folder = work / name
    if not folder.exists():
        config = json.loads((ROOT / f"crates/models/src/presets/{name}.json").read_text())
        del config["quantization_config"]
        config |= {
            "num_hidden_layers": 2,
            "first_k_dense_replace": 1,
            "intermediate_size": 1024,
            "moe_intermediate_size": 256,
            "n_routed_experts": 8,
            "n_group": 1,
            "topk_group": 1,
            "vocab_size": 1000,
        }
        file = work / f"{name}.json"
        file.write_text(json.dumps(config))
        subprocess.run([OUTSIZE, "synth", file, folder], check=True, stderr=subprocess.DEVNULL)
    return folder


def run(folder, length):
    """Seconds of the prompt, and of a token behind it."""
    ids = ",".join(str(3 + at * 7 % 990) for at in range(length))
    command = [OUTSIZE, "run", folder, "--ids", ids, "--max-new-tokens", NEW_TOKENS, "--ignore-eos", "--json"]
    command += ["--context", length + NEW_TOKENS]
    report = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    report = json.loads(report.stdout)
    return report["prefill_seconds"], report["seconds_per_token"]


def main():
    work = Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    lengths = [int(length) for length in sys.argv[2:]] or [1024, 2048, 4096, 8192]
    models = {name: model(work, name) for name in ["deepseek-v3", "deepseek-v3.2"]}
    print("| tokens before | " + " | ".join(f"{name}: prompt, s | ms a token" for name in models) + " |")
    print("|---|" + "---|---|" * len(models))
    for length in lengths:
        cells = []
        for folder in models.values():
            prompt, token = run(folder, length)
            cells += [f"{prompt:.1f}", f"{token * 1000:.0f}"]
        print(f"| {length:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
