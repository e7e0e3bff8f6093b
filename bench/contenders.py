"""The programs that are compared: how each is started for a task, and what it came to."""

import importlib
import importlib.metadata
import json
import pathlib
import subprocess
import sys
from dataclasses import dataclass, field

import cgroup
import disk

HERE = pathlib.Path(__file__).parent
PROMPT = ",".join(str(300 + 7 * i) for i in range(32))


@dataclass
class Task:
    """What a program is to do: a prompt of 32 tokens and `new_tokens` more, and then prompts and batches to be timed."""

    new_tokens: int
    prefills: str = ""
    batches: str = ""
    budget: int | None = None
    """Bytes of weights, or of the process, that may stay in memory; everything if there is none."""
    gpu_budget: int | None = None
    """Bytes of weights on a GPU, the rest in main memory; no GPU if there is none."""
    gpu_layers: int = 0
    """The same in layers."""


@dataclass
class Contender:
    """A program with its model."""

    name: str
    model: pathlib.Path
    program: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    def command(self, task: Task) -> list[str]:
        common = ["--ids", PROMPT, "--max-new-tokens", str(task.new_tokens)]
        if self.name.startswith("outsize"):
            budget = ["--max-memory", f"cpu={task.budget}B"] if task.budget else []
            return [*self.program, "run", str(self.model), *common, "--ignore-eos", "--json", *self.options, *budget]
        command = [*self.program, str(self.model), *common, "--prefills", task.prefills]
        if self.name == "llama.cpp":
            return [*command, *(["--gpu-layers", str(task.gpu_layers)] if task.gpu_budget else [])]
        command += ["--batches", task.batches]
        if task.gpu_budget:
            command += ["--gpu-memory", f"{task.gpu_budget // 1_000_000}MB"]
        if task.budget:
            command += ["--max-memory", f"{task.budget // 1_000_000}MB", "--offload-dir", str(self.model.resolve().parent)]
        return command


def outsize(binary: str, model: pathlib.Path, compute: str = "f32") -> Contender:
    name = "outsize" if compute == "f32" else f"outsize, {compute}"
    return Contender(name, model, [binary], ["--compute", compute])


def torch(model: pathlib.Path, name: str = "torch") -> Contender:
    return Contender(name, model, [sys.executable, str(HERE / "hf_run.py")])


def llama_cpp(gguf: pathlib.Path) -> Contender:
    return Contender("llama.cpp", gguf, [sys.executable, str(HERE / "llamacpp_run.py")])


def run(contender: Contender, task: Task, limit: int | None, timeout: float, cold: bool = True) -> dict:
    """Runs it in a memory cgroup of `limit` bytes. What it printed, or `failed`: why it printed nothing."""
    if cold:
        disk.drop_page_cache()
    return run_command(contender.command(task), limit, timeout)


def run_command(command: list[str], limit: int | None, timeout: float) -> dict:
    status, out, err, peak, seconds = cgroup.run(command, limit, timeout)
    if status == 0:
        return {**json.loads(out), "cgroup_peak_bytes": peak, "whole_seconds": seconds}
    print(f"{' '.join(command)[:200]}: status {status}\n{err[-600:]}", file=sys.stderr)
    if status == 124:
        return {"failed": f"not done in {timeout:.0f} s"}
    if status in (-9, 137) or "MemoryError" in err:
        return {"failed": "out of memory"}
    return {"failed": f"status {status}"}


def versions(*packages: str) -> str:
    """The versions of these packages, as words."""
    return ", ".join(f"{package} {version(package)}" for package in packages)


def version(package: str) -> str:
    """What is installed; or what the module says that is found otherwise (`PYTHONPATH`)."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return importlib.import_module(package.removesuffix("-python").replace("-", "_")).__version__
    except ImportError:
        return "not installed"
