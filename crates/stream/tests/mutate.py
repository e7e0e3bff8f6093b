#!/usr/bin/env python3
"""Breaks the pool in one place after the other and tells whether `tests/model` sees it.

    python3 crates/stream/tests/mutate.py [TEXT]     only the mutations whose name contains TEXT

Works on a copy of the workspace below target/mutate; takes about half a minute for each.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
COPY = ROOT / "target" / "mutate"
# Quick to compile, over and over.
FAST = {
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_INCREMENTAL": "true",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "64",
    "RUST_BACKTRACE": "0",
}

# (name, file, text, text instead, whether the model must see it). What it need not see costs time alone: a reader that nobody woke
# reads no more ahead until a caller misses something, which wakes all.
MUTATIONS = [
    ("a lease that ends wakes no reader", "pool.rs",
     "        if !settled {\n            self.work.notify_one();\n        }\n        if starving {", "        if starving {", True),
    ("a request wakes no reader", "pool.rs",
     "        if !settled {\n            self.work.notify_one();\n        }\n        if starving && found", "        if starving && found", True),
    ("a demand wakes no reader", "pool.rs",
     "state.hurry(id);\n                    self.work.notify_all();", "state.hurry(id);", True),
    ("the end of a pass wakes no reader", "pool.rs",
     "        change(&mut state.schedule);\n        drop(state);\n        self.work.notify_one();", "        change(&mut state.schedule);", True),
    ("nobody looks again after a pass", "pool.rs",
     "        state.settled = false;\n        change(", "        change(", False),
    ("nobody looks again after what was announced", "pool.rs", "        state.settled &= !missing;\n", "", False),
    ("nobody looks again after a wait", "pool.rs", "        state.settled &= !waited;\n", "", False),
    ("nobody looks again after a loan", "pool.rs", "        state.settled &= block.is_some();\n", "", True),
    ("nobody looks again after something left the ring", "state.rs", "        self.settled = false;\n        self.in_ring", "        self.in_ring", False),
    ("what is announced wakes no reader", "pool.rs",
     "        if missing {\n            self.work.notify_one();\n        }\n", "", False),
    ("what is ready wakes no caller", "loading.rs",
     "Slot::Ready(block);\n            self.ready.notify_all();", "Slot::Ready(block);", True),
    ("what is ready wakes one caller", "loading.rs",
     "Slot::Ready(block);\n            self.ready.notify_all();", "Slot::Ready(block);\n            self.ready.notify_one();", True),
    ("a failure wakes no caller", "loading.rs",
     "Slot::Failed(failure);\n                self.ready.notify_all();", "Slot::Failed(failure);", True),
    ("a failed read frees a block that is still read into", "loading.rs",
     "(done == issued).then(|| failure.clone())", "Some(failure.clone())", True),
    ("reads of a failed chunk stay queued", "loading.rs",
     "            state.queue.retain(|queued| *queued != chunk);\n", "", True),
    ("a read holds its block until after the chunk is ready", "loading.rs",
     "        self.block = None;\n        let pool = &self.seat.pool;\n        let took", "        let _held = self.block.take();\n        let pool = &self.seat.pool;\n        let took", True),
    ("a reader that dies fails its read before it is gone", "loading.rs",
     "            self.seat.leave(&mut state);\n", "", True),
    ("a reader that dies keeps its read", "loading.rs",
     "        if self.block.take().is_some() {\n            let pool", "        if false {\n            let pool", True),
    ("the last reader leaves the queue as it is", "loading.rs",
     "while let Some(id) = state.queue.pop_front() {", "while let Some(id) = None.or_else(|| { state.queue.clear(); None::<ChunkId> }) {", True),
    ("the last reader tells nobody", "loading.rs",
     "            });\n        }\n        self.ready.notify_all();", "            });\n        }", True),
    ("nobody sees that the readers are gone", "loading.rs",
     "self.deserted.store(true, Ordering::Relaxed);", "", True),
    ("a demand without readers is queued", "pool.rs", "if state.readers == 0 {", "if false {", True),
    ("a caller that failed stays counted", "pool.rs",
     "        state.callers[id] -= 1;\n        if let Ok(block) = &found {", "        if let Ok(block) = &found {\n            state.callers[id] -= 1;", True),
    ("each waiter counts itself off when it is ready (the count that went below zero)", "pool.rs",
     "                        state = self.wait(state);\n                    }\n                }",
     "                        state = self.wait(state);\n                    }\n                    if matches!(state.slots[id], Slot::Ready(_)) {\n                        state.callers[id] -= 1;\n                    }\n                }", True),
    ("an old failure is never tried again", "pool.rs",
     "Slot::Failed(error) if attempted => break", "Slot::Failed(error) => break", True),
    ("a failure is tried again for ever", "pool.rs",
     "Slot::Failed(error) if attempted => break", "Slot::Failed(error) if attempted && false => break", True),
    ("leased memory counts as free", "state.rs", " && Arc::strong_count(block) == 1", "", True),
    ("memory comes back outside of the lock", "pool.rs", "let block = if block.is_in_ring() {", "let block = if false {", True),
    ("the overflow share has no limit", "overflow.rs", "*used <= self.limit", "*used <= u64::MAX", True),
    ("the overflow share is not given back", "overflow.rs", "self.used.fetch_sub(self.bytes, Ordering::Relaxed);", "", True),
    ("the pool keeps what it lent", "pool.rs", "if matches!(**block, Block::Overflow(_)) {", "if false {", True),
    ("what was lent is never read ahead again", "state.rs", "Slot::Lent(block) => block.strong_count() == 0,", "", True),
    ("a chunk larger than the ring stops the readers", "loading.rs",
     "full || chunk.block_len() > self.arena.size()", "full", True),
    ("the arena forgets what comes back", "block.rs", "arena.give_back(range.clone());", "let _ = (arena, range);", True),
    ("a caller does not wait for reads under way", "pool.rs", "need <= self.arena.size() && state", "false && state", True),
    ("a ready chunk is evicted under its callers", "state.rs", "if self.callers[id] == 0 && block", "if block", True),
    ("readers read ahead while a caller starves", "loading.rs", "if state.starving > 0 {", "if false {", False),
    ("a lease that ends wakes no starving caller", "pool.rs",
     "        if starving {\n            self.ready.notify_all();\n        }", "", False),
    ("a reader wakes no other for what it began", "loading.rs",
     "                    self.work.notify_all();\n                    continue;", "                    continue;", False),
    ("what is waited for is not hurried", "state.rs",
     "self.queue.push_front(id);", "self.queue.push_back(id);", False),
]


def main():
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    missed = []
    for name, file, text, instead, must in MUTATIONS:
        if only not in name:
            continue
        for part in ("Cargo.toml", "Cargo.lock", "crates"):
            target = COPY / part
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, target, dirs_exist_ok=True)
            else:
                COPY.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / part, target)
        path = COPY / "crates" / "stream" / "src" / file
        source = path.read_text()
        if source.count(text) != 1:
            sys.exit(f"{file} has {source.count(text)} times the text of: {name}")
        path.write_text(source.replace(text, instead))
        result = subprocess.run(
            ["cargo", "test", "--release", "-p", "outsize-stream", "--test", "model", "--", "small::", "free_for_all::"],
            cwd=COPY, env=os.environ | FAST, capture_output=True, text=True, timeout=1200,
        )
        output = result.stdout + result.stderr
        if "could not compile" in output:
            sys.exit(f"{name}: does not compile\n{output}")
        seen = result.returncode != 0
        by = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", output, re.M)))
        if seen and not by:
            # What unwinds in a schedule that failed may fail once more, and end the program.
            by = sorted(set(re.findall(r"^thread '(\w+::\w+)'.* panicked", output, re.M)))
        print(f"{'seen' if seen else 'not seen'}{'' if must or seen else ' (costs time alone)'}: {name} {' '.join(by)}", flush=True)
        if must and not seen:
            missed.append(name)
    sys.exit(1 if missed else 0)


main()
