"""Runs a command inside a memory cgroup that also counts the page cache (version 1, as root)."""

import os
import pathlib
import subprocess
import time

ROOT = pathlib.Path("/sys/fs/cgroup/memory")


def available() -> bool:
    """Whether such a cgroup can be made here."""
    probe = ROOT / f"outsize-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
        return True
    except OSError:
        return False


def run(command: list[str], limit: int | None, timeout: float = 240, env=None):
    """Runs `command` with at most `limit` bytes; kills it after `timeout` seconds. Returns (exit status, stdout, stderr, peak bytes of the cgroup, seconds)."""
    group = ROOT / f"outsize-bench-{os.getpid()}"
    if limit is not None:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))

    def enter():
        if limit is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    start = time.perf_counter()
    try:
        done = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, timeout=timeout, env=env)
        seconds = time.perf_counter() - start
        peak = int((group / "memory.max_usage_in_bytes").read_text()) if limit is not None else None
        return done.returncode, done.stdout, done.stderr, peak, seconds
    except subprocess.TimeoutExpired:
        return 124, "", f"not done after {timeout} seconds", None, timeout
    finally:
        if limit is not None:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)
