"""The least memory budget that a model runs in at a context of 64, the whole process included.

    python bench/least_budget.py MODEL [--outsize PATH] [--context 64] [--goal MB]

Bisects between what is refused and what works. What works has generated a token, in a memory cgroup as large as the budget where one can be
made (page cache included), and its peak resident set was within the budget. With `--goal`, fails if that much does not do.
"""

import argparse
import json
import pathlib
import sys

import cgroup


def works(args, megabytes: int) -> bool:
    budget = megabytes * 1_000_000
    command = [args.outsize, "run", args.model, "--ids", "1,2,3,4", "--max-new-tokens", "2", "--ignore-eos", "--json"]
    command += ["--context", str(args.context), "--max-memory", f"cpu={budget}"]
    status, out, err, peak, _ = cgroup.run(command, budget if args.cgroup else None, timeout=150)
    if status:
        refused = err.strip().splitlines()[-1][:100] if err.strip() else f"ended with {status}"
        print(f"{megabytes} MB: no ({refused})", file=sys.stderr)
        return False
    held = json.loads(out)["peak_rss_bytes"]
    print(f"{megabytes} MB: yes, {held / 1e6:.1f} MB resident, cgroup {(peak or 0) / 1e6:.1f} MB", file=sys.stderr)
    return held <= budget


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--outsize", default=str(root / "target" / "release" / "outsize"))
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--from", dest="low", type=int, default=16, help="MB that surely do not do")
    parser.add_argument("--to", dest="high", type=int, default=400, help="MB that surely do")
    parser.add_argument("--goal", type=int, help="MB that have to do")
    args = parser.parse_args()
    args.cgroup = cgroup.available()
    if not works(args, args.high):
        raise SystemExit(f"{args.high} MB do not do: give more with --to")
    low, high = args.low, args.high
    while high - low > 1:
        middle = (low + high) // 2
        if works(args, middle):
            high = middle
        else:
            low = middle
    where = "a memory cgroup as large, page cache included" if args.cgroup else "no memory cgroup, which cannot be made here"
    print(f"{pathlib.Path(args.model).name}: {high} MB at a context of {args.context}; {where}")
    if args.goal and high > args.goal:
        raise SystemExit(f"{args.goal} MB were to do")


main()
