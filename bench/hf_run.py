"""Generates greedily with transformers, resident or dispatched by accelerate, and prints one JSON object.

Run by side_by_side.py in a process (and memory cgroup) of its own. The fields are named as in `outsize run --json`.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time

begun = time.perf_counter()

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--ids", required=True, help="token ids of the prompt, separated by commas")
parser.add_argument("--max-new-tokens", type=int, required=True)
parser.add_argument("--max-memory", help="dispatch by accelerate: this much on the CPU, the rest on disk")
parser.add_argument("--gpu-memory", help="dispatch by accelerate: this much on the first GPU, the rest in main memory")
parser.add_argument("--offload-dir", help="where the offload folder is made (the model's own file system)")
parser.add_argument("--prefills", default="", help="prompts to time afterwards, in tokens, separated by commas")
parser.add_argument("--batches", default="", help="batches to time afterwards, in rows, separated by commas")
parser.add_argument("--threads", type=int, default=os.cpu_count())
args = parser.parse_args()

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM  # noqa: E402

torch.set_num_threads(args.threads)
torch.set_grad_enabled(False)
imported = time.perf_counter()


config = AutoConfig.from_pretrained(args.model)
Model = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def load(offload: str):
    if args.gpu_memory:
        return Model.from_pretrained(args.model, dtype=config.dtype, device_map="auto", max_memory={0: args.gpu_memory, "cpu": "1000GB"})
    if not args.max_memory:
        return Model.from_pretrained(args.model, dtype=config.dtype)
    if hasattr(config, "num_experts_per_tok"):
        # Experts are stored one by one and held together: transformers alone knows how.
        memory = {"cpu": args.max_memory}
        return Model.from_pretrained(args.model, dtype=config.dtype, device_map="auto", max_memory=memory, offload_folder=offload)
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    with init_empty_weights():
        model = Model.from_config(config, dtype=config.dtype)
    model.tie_weights()
    return load_checkpoint_and_dispatch(
        model,
        args.model,
        device_map="auto",
        max_memory={"cpu": args.max_memory},
        no_split_module_classes=list(model._no_split_modules),
        offload_folder=offload,
        dtype=config.dtype,
    )


def step(model, ids, cache, encoded=None):
    """Runs `ids` [rows, tokens] behind what the cache holds: the cache, the likeliest next tokens [rows, 1], and the seconds."""
    ids = ids.to(model.device)
    start = time.perf_counter()
    if encoded is None:
        out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    else:
        out = model(decoder_input_ids=ids, encoder_outputs=encoded, past_key_values=cache, use_cache=True)
    chosen = out.logits[:, -1].argmax(-1, keepdim=True)
    if chosen.is_cuda:
        torch.cuda.synchronize()
    return out.past_key_values, chosen, time.perf_counter() - start


def texts(rows: int, tokens: int):
    vocabulary = model.config.vocab_size
    return torch.tensor([[(300 + 7 * (i + 5 * row)) % vocabulary for i in range(tokens)] for row in range(rows)])


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


with tempfile.TemporaryDirectory(dir=args.offload_dir) as offload:
    model = load(offload)
    model.eval()
    loaded = time.perf_counter()

    ids = torch.tensor([[int(i) for i in args.ids.split(",")]])
    cache, tokens, seconds, encoded = None, [], [], None
    if config.is_encoder_decoder:
        encoded = model.get_encoder()(input_ids=ids.to(model.device))
        ids = torch.tensor([[config.decoder_start_token_id]])
    encoding = time.perf_counter() - loaded
    for _ in range(args.max_new_tokens):
        cache, ids, took = step(model, ids, cache, encoded)
        tokens.append(int(ids))
        seconds.append(took)
    seconds[0] += encoding

    prefills, batches = {}, {}
    for n in numbers(args.prefills):
        step(model, texts(1, n), None)
        prefills[n] = statistics.median(step(model, texts(1, n), None)[2] for _ in range(1 if n > 256 else 3))
    for rows in numbers(args.batches):
        cache, ids, _ = step(model, texts(rows, 8), None)
        steps = []
        for _ in range(9):
            cache, ids, took = step(model, ids, cache)
            steps.append(took)
        batches[rows] = statistics.median(steps)

print(
    json.dumps(
        {
            "tokens": tokens,
            "import_seconds": imported - begun,
            "load_seconds": loaded - imported,
            "prefill_seconds": seconds[0],
            "seconds_per_token": statistics.median(seconds[1:]) if seconds[1:] else None,
            "first_token_seconds": loaded - begun + seconds[0],
            "prefills": prefills,
            "batches": batches,
            "gpu_memory_bytes": torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )
)
sys.stdout.flush()
