"""Times steps of training of a Llama with random weights in torch, and prints one JSON object.

Run by training.py; the fields are those of outsize's example `training_step`. With bf16, autocast computes forward and backward.
"""

import argparse
import json
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("rows", type=int)
parser.add_argument("tokens", type=int)
parser.add_argument("compute", choices=["f32", "bf16"])
parser.add_argument("steps", type=int)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()

torch.set_num_threads(args.threads)
torch.manual_seed(0)
config = AutoConfig.for_model(**json.load(open(args.config)))
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, eps=1e-8)
seconds, losses = [], []
for _ in range(args.steps):
    ids = torch.randint(0, config.vocab_size, (args.rows, args.tokens))
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.compute == "bf16"):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    adamw.step()
    adamw.zero_grad()
    end = time.perf_counter()
    seconds.append([forward - start, backward - forward, end - backward])
    losses.append(loss.item())
print(json.dumps({"seconds": seconds, "losses": losses}))
