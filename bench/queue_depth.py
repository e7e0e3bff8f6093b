"""Watches the disk while outsize runs: a line a second with speed, latency, reads in flight, and what the processors do.

    python bench/queue_depth.py DISK outsize run MODEL --ids 1,2,3 --max-new-tokens 45 --ignore-eos --max-memory cpu=600MB

DISK is a name in /proc/diskstats, such as vda.
"""

import os
import subprocess
import sys
import time


def look(disk: str):
    with open("/proc/diskstats") as lines:
        f = next(line.split() for line in lines if line.split()[2] == disk)
    with open("/proc/stat") as lines:
        cpu = [int(x) for x in lines.readline().split()[1:6]]
    # Reads, sectors read, ms waited for reads, ms busy, ms weighted by what was in flight; user, nice, system, idle, waiting.
    return [int(f[i]) for i in (3, 5, 6, 12, 13)] + cpu


disk, command = sys.argv[1], sys.argv[2:]
process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
before = look(disk)
while process.poll() is None:
    time.sleep(1)
    now = look(disk)
    reads, sectors, waited, busy, weighted, user, _, system, idle, io = (b - a for a, b in zip(before, now))
    ticks = os.sysconf("SC_CLK_TCK") * os.cpu_count() / 100
    if reads:
        print(
            f"{sectors * 512 / 1e9:.2f} GB/s, {waited / reads:.2f} ms a read, {weighted / max(busy, 1):.2f} in flight; "
            f"processors {user / ticks:.0f} % user, {system / ticks:.0f} % system, {(idle + io) / ticks:.0f} % idle"
        )
    before = now
