"""Prints what answering side by side gains: clients that ask at once, of servers of different `--batch`, within budgets.

    python bench/serving.py MODEL [--budgets 4GB 600MB] [--batch 1 2 4 8] [--clients 8]

Each client asks for one greedy answer to a prompt of its own, behind a beginning that all have in common. Tokens are those of all
clients in the time until the last one has its answer; the first token is that of the median client. Servers are started anew, in
turns; medians of the rounds; the texts are compared.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("--outsize", default=str(pathlib.Path(__file__).parent.parent / "target/release/outsize"))
parser.add_argument("--budgets", nargs="+", default=["4GB", "600MB"])
parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8])
parser.add_argument("--clients", type=int, default=8)
parser.add_argument("--new-tokens", type=int, default=32)
parser.add_argument("--rounds", type=int, default=1)
args = parser.parse_args()

BEGINNING = "You are an assistant who answers in few words, and never in more than one sentence. "


def ask(address: str, number: int) -> dict:
    """One answer, as it comes."""
    request = {"prompt": f"{BEGINNING}What is {number} times {number}?", "max_tokens": args.new_tokens, "temperature": 0, "stream": True}
    request["stream_options"] = {"include_usage": True}
    post = urllib.request.Request(f"{address}/v1/completions", json.dumps(request).encode(), {"Content-Type": "application/json"})
    started, first, text, usage = time.monotonic(), None, "", {}
    try:
        answer = urllib.request.urlopen(post)
    except urllib.error.HTTPError as error:
        os._exit(print(error.read().decode()) or 1)
    with answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            part = json.loads(line.removeprefix(b"data: "))
            first = first or time.monotonic() - started
            text += "".join(choice["text"] for choice in part["choices"])
            usage = part["usage"] or usage
    return {"first": first, "text": text, "tokens": usage["completion_tokens"]}


def serve(budget: str, batch: int) -> dict:
    command = [args.outsize, "serve", str(args.model), "--port", "0", "--context", "256", "--ignore-eos", "--max-memory", f"cpu={budget}"]
    server = subprocess.Popen([*command, "--batch", str(batch)], stderr=subprocess.PIPE, text=True)
    said = ""
    while (address := re.search(r"http://[^/\s]+", said)) is None:
        if not (line := server.stderr.readline()):
            sys.exit(f"{' '.join(command)}\n{said}")
        said += line
    # All resident weights are read by the first answer.
    ask(address[0], 0)
    answers: dict[int, dict] = {}
    clients = [threading.Thread(target=lambda number: answers.update({number: ask(address[0], number)}), args=(number,))
               for number in range(1, args.clients + 1)]
    started = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = time.monotonic() - started
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    server.terminate()
    server.wait()
    return {
        "texts": [answers[number]["text"] for number in sorted(answers)],
        "rate": sum(answer["tokens"] for answer in answers.values()) / seconds,
        "first": statistics.median(answer["first"] for answer in answers.values()),
        "peak": int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024 / 1e6,
    }


texts = set()
print("| budget | --batch | tokens/s of all | first token, s | peak MB |")
print("|---|---|---|---|---|")
for budget in args.budgets:
    found: dict[int, list[dict]] = {batch: [] for batch in args.batch}
    for _ in range(args.rounds):
        for batch in args.batch:
            found[batch].append(serve(budget, batch))
    for batch, rounds in found.items():
        texts.update(tuple(one["texts"]) for one in rounds)
        rate, first = (statistics.median(one[key] for one in rounds) for key in ["rate", "first"])
        print(f"| {budget} | {batch} | {rate:.2f} | {first:.1f} | {max(one['peak'] for one in rounds):.0f} |", flush=True)
print("the same texts" if len(texts) == 1 else f"{len(texts)} different sets of texts")
