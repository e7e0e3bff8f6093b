"""Generates greedily with llama.cpp from a GGUF file, and prints one JSON object.

Run by side_by_side.py in a process (and memory cgroup) of its own. The fields are named as in `outsize run --json`.
"""

import argparse
import json
import os
import resource
import statistics
import time

begun = time.perf_counter()

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--ids", required=True, help="token ids of the prompt, separated by commas")
parser.add_argument("--max-new-tokens", type=int, required=True)
parser.add_argument("--prefills", default="", help="prompts to time afterwards, in tokens, separated by commas")
parser.add_argument("--gpu-layers", type=int, default=0, help="layers on the GPU; no GPU without")
parser.add_argument("--threads", type=int, default=os.cpu_count())
args = parser.parse_args()

import llama_cpp  # noqa: E402
import numpy  # noqa: E402

imported = time.perf_counter()
prompt = [int(i) for i in args.ids.split(",")]
prefills = [int(n) for n in args.prefills.split(",") if n]
longest = max([len(prompt) + args.max_new_tokens, *prefills])
llm = llama_cpp.Llama(
    args.model,
    n_ctx=longest,
    n_batch=longest,
    n_ubatch=512,
    n_threads=args.threads,
    n_threads_batch=args.threads,
    n_gpu_layers=args.gpu_layers,
    use_mmap=True,
    verbose=False,
)
loaded = time.perf_counter()


def run(ids: list[int]) -> int:
    """Appends tokens, and gives the likeliest next one."""
    llm.eval(ids)
    logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return int(numpy.ctypeslib.as_array(logits, (llm.n_vocab(),)).argmax())


def timed(ids: list[int]) -> float:
    llm.reset()
    start = time.perf_counter()
    run(ids)
    return time.perf_counter() - start


ids, tokens, seconds = prompt, [], []
for _ in range(args.max_new_tokens):
    start = time.perf_counter()
    ids = [run(ids)]
    tokens += ids
    seconds.append(time.perf_counter() - start)

print(
    json.dumps(
        {
            "tokens": tokens,
            "import_seconds": imported - begun,
            "load_seconds": loaded - imported,
            "prefill_seconds": seconds[0],
            "seconds_per_token": statistics.median(seconds[1:]) if seconds[1:] else None,
            "first_token_seconds": loaded - begun + seconds[0],
            "prefills": {n: statistics.median(timed([(300 + 7 * i) % llm.n_vocab() for i in range(n)]) for _ in range(1 if n > 256 else 3)) for n in prefills},
            "batches": {},
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )
)
