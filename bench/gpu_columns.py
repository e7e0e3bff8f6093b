"""The part of side_by_side.py with a GPU: outsize beside accelerate and llama.cpp, and how near it comes to the link and the GPU."""

import json
import subprocess
import sys

import contenders
from contenders import Task

GOALS = """goals: tokens with streamed weights at 90 % of the link; tokens with resident weights at 85 % of the GPU's memory; a prompt of
512 with all weights in main memory at 90 % of the link, or of what products of many rows reach"""
PROMPT = 512


def missing(outsize: str) -> dict[str, str]:
    """Of each contender why it cannot use a GPU here, if it cannot."""
    found = {}
    env = json.loads(subprocess.run([outsize, "env", "--json"], check=True, capture_output=True, text=True).stdout)
    if env["backends"] == ["cpu"]:
        found["outsize"] = "built without a GPU: cargo build --release --features cuda (or vulkan)"
    elif not env["gpus"]:
        found["outsize"] = f"finds no GPU with {', '.join(env['backends'][1:])}"
    try:
        import accelerate  # noqa: F401
        import torch

        if not torch.cuda.is_available():
            found["accelerate"] = f"torch {torch.__version__} finds no CUDA GPU"
    except ImportError as error:
        found["accelerate"] = f"not installed: {error}"
    try:
        import llama_cpp

        if not llama_cpp.llama_supports_gpu_offload():
            found["llama.cpp"] = 'built without a GPU: CMAKE_ARGS="-DGGML_CUDA=ON" pip install llama-cpp-python --no-binary llama-cpp-python'
    except ImportError as error:
        found["llama.cpp"] = f"not installed: {error}"
    return found


def bench(outsize: str, model, budget: str, args) -> dict:
    """What `outsize bench` says of the model in a budget."""
    command = [outsize, "bench", str(model), "--json", "--max-memory", budget, "--prompt-tokens", str(PROMPT)]
    command += ["--new-tokens", str(args.new_tokens), "--rounds", str(args.rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr else f"status {done.returncode}"}
    results = json.loads(done.stdout)
    phases = {phase["name"]: phase for phase in results["budgets"][0]["phases"]}
    held = max(sum(run["report"]["gpu_memory_bytes"].values()) for run in results["budgets"][0]["runs"])
    return {"phases": phases, "gpu_memory_bytes": held, "gpus": results["gpus"], "notes": results["notes"]}


def ours(result: dict, phase: str) -> list[str]:
    """Measured and predicted seconds, and the tightest bound on a GPU with its share."""
    if "failed" in result:
        return [result["failed"], "", ""]
    phase = result["phases"][phase]
    bound = next((bound for bound in phase["bounds"] if "GPU" in bound["limit_of"]), None)
    share = f"{bound['share']['median']:.0%} of {bound['limit_of']}" if bound else "no GPU took part"
    predicted = phase["predicted_seconds"]
    return [f"{phase['seconds']['median']:.4f}", f"{predicted:.4f}" if predicted else "", share]


def theirs(contender, task: Task, args, reasons: dict[str, str]) -> list[str]:
    """Seconds of a token and of the prompt, and gigabytes that were held on the GPU."""
    if contender.name in reasons:
        return [reasons[contender.name]] * 3
    result = contenders.run(contender, task, None, args.timeout)
    if "failed" in result:
        return [result["failed"]] * 3
    held = result.get("gpu_memory_bytes")
    return [f"{result['seconds_per_token']:.4f}", f"{result['prefills'][str(PROMPT)]:.4f}", gigabytes(held) if held else "does not tell"]


def gigabytes(held: int) -> str:
    return f"{held / 1e9:.2f} GB"


def compare(args, weights: int):
    """Prints the table; or why there is none."""
    reasons = missing(args.outsize)
    for name, reason in reasons.items():
        print(f"{name}: skipped: {reason}")
    if "outsize" in reasons:
        return
    layers = json.loads((args.model / "config.json").read_text())["num_hidden_layers"]
    roomy = int(1.2 * weights) + 4_000_000_000
    # What accelerate and llama.cpp are told, they hold of weights; outsize counts all that it holds.
    cases = [("all on the GPU", f"gpu0={roomy}B,cpu={roomy}B", 100)]
    for share in args.shares:
        cases.append((f"{share} % on the GPU", f"gpu0={weights * share // 100 + 1_000_000_000}B,cpu={roomy}B", share))
    print(f"\n{GOALS}\n\n| seconds | outsize | predicted | of its limit | accelerate | llama.cpp |\n|---|---|---|---|---|---|")
    for title, budget, share in cases:
        print(title, file=sys.stderr)
        result = bench(args.outsize, args.model, budget, args)
        task = Task(args.new_tokens, prefills=str(PROMPT), gpu_budget=weights * share // 100, gpu_layers=layers * share // 100)
        others = [theirs(one, task, args, reasons) for one in (contenders.torch(args.model, "accelerate"), contenders.llama_cpp(args.gguf))]
        for at, (phase, what) in enumerate([("token", "a token"), ("prompt again", f"prompt of {PROMPT}")]):
            cells = [*ours(result, phase), *[other[at] for other in others]]
            print(f"| {title}, {what} | " + " | ".join(cells) + " |", flush=True)
        held = gigabytes(result["gpu_memory_bytes"]) if "gpu_memory_bytes" in result else result["failed"]
        print(f"| {title}, GPU memory held | " + " | ".join([held, "", "", *[other[2] for other in others]]) + " |", flush=True)
        for note in result.get("notes", []):
            print(f"note: {note}", file=sys.stderr)
    for number, gpu in result.get("gpus", {}).items():
        on, link = gpu["processor"], gpu["upload"]["bytes_per_second"]
        print(f"\ngpu{number}: link {link / 1e9:.1f} GB/s, memory {on['memory_bytes_per_second'] / 1e9:.0f} GB/s, products of many rows {on['product_flops'] / 1e12:.1f} TFLOP/s")
