"""Steps of LoRA with PEFT and torch, or of all weights if RANK is 0, for `finetune.py`: prints one JSON object, tokens per second of each step and the peak resident set.

    python bench/hf_finetune.py MODEL TOKENS STEPS RANK f32|bf16 kept|checkpointed
"""

import json
import resource
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

folder, tokens, steps, rank, dtype, activations = sys.argv[1:]
tokens, steps, rank = int(tokens), int(steps), int(rank)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
if rank:
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
if activations == "checkpointed":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
model.train()
adamw = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4 if rank else 1e-5)
generator = torch.Generator().manual_seed(0)
rates = []
for _ in range(steps):
    ids = torch.randint(3, model.config.vocab_size, (1, tokens), generator=generator)
    start = time.perf_counter()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    adamw.step()
    adamw.zero_grad()
    rates.append(tokens / (time.perf_counter() - start))
print(json.dumps({"rates": rates, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
