"""Times Stable Diffusion beside diffusers on torch, and stable-diffusion.cpp, on the same weights, in turns, and prints a table of medians.

    cargo build --release -p outsize-models --example picture_passes
    python bench/pictures.py MODEL                          # passes of the denoiser and of the decoder, pictures of two steps
    python bench/pictures.py MODEL --rounds 1 --only unet   # in a minute or two

MODEL is a folder made by `outsize synth stable-diffusion-v1 MODEL --dtype f16`. Each contender is a process that has its weights in
memory and waits for its turn; all have as many threads. A pass of the denoiser is of batch 2 at 64 x 64 latents, a picture of 512 x 512
with guidance by PNDM: three passes for two steps, each by a process of its own if outsize makes it. The first round is not counted. Contenders that are not installed are left out:
pip install torch diffusers transformers stable-diffusion-cpp-python.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
PROMPT = "a horse on the moon"
JOBS = ["unet", "vae", "picture"]


def torch_worker(folder: pathlib.Path, job: str, dtype: str, threads: int):
    """Answers each line that comes in with the seconds of a pass."""
    import diffusers
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    kind = getattr(torch, {"f32": "float32", "bf16": "bfloat16"}[dtype])
    # The decoder alone is in the folder: what is missing is made up.
    load = {"torch_dtype": kind, "low_cpu_mem_usage": False}
    noise = lambda *sides: torch.randn(*sides, dtype=kind)
    if job == "unet":
        unet = diffusers.UNet2DConditionModel.from_pretrained(folder / "unet", **load)
        latents, context = noise(2, 4, 64, 64), noise(2, 77, 768)
        work = lambda: unet(latents, 500, context)
    elif job == "vae":
        vae = diffusers.AutoencoderKL.from_pretrained(folder / "vae", **load)
        latents = noise(1, 4, 64, 64)
        work = lambda: vae.decode(latents)
    else:
        import transformers

        pipeline = diffusers.StableDiffusionPipeline(
            vae=diffusers.AutoencoderKL.from_pretrained(folder / "vae", **load),
            text_encoder=transformers.CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=kind),
            tokenizer=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer"),
            unet=diffusers.UNet2DConditionModel.from_pretrained(folder / "unet", **load),
            scheduler=diffusers.PNDMScheduler.from_pretrained(folder / "scheduler"),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        pipeline.set_progress_bar_config(disable=True)
        work = lambda: pipeline(PROMPT, num_inference_steps=2, height=512, width=512)
    with torch.inference_mode():
        answer(work)


def cpp_worker(folder: pathlib.Path, threads: int):
    """The same of stable-diffusion.cpp, a picture of as many passes: its sampler makes one a step."""
    import stable_diffusion_cpp

    model = stable_diffusion_cpp.StableDiffusion(model_path=str(folder), n_threads=threads, vae_decode_only=True, verbose=False)
    answer(lambda: model.generate_image(prompt=PROMPT, width=512, height=512, sample_steps=3, cfg_scale=7.5, sample_method="euler", seed=1))


def answer(work):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for _ in sys.stdin:
        start = time.perf_counter()
        work()
        print(f"{time.perf_counter() - start:.3f} s", file=out, flush=True)


class Contender:
    """A process that makes a pass for each line."""

    def __init__(self, command: list[str], env: dict):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)

    def turn(self):
        """Seconds of a pass, or nothing if the process ended."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        for line in self.process.stdout:
            if " s" in line and line.split(" ")[0].replace(".", "").isdigit():
                return float(line.split(" ")[0])
        return None

    def end(self):
        self.process.kill()
        self.process.wait()


class Command(Contender):
    """A command that is run anew for each pass."""

    def __init__(self, command: list[str], env: dict):
        self.command, self.env = command, env

    def turn(self):
        start = time.perf_counter()
        done = subprocess.run(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.env)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return None
        return time.perf_counter() - start

    def end(self):
        pass


def contenders(args, job: str) -> dict:
    env = os.environ | {"RAYON_NUM_THREADS": str(args.threads), "OMP_NUM_THREADS": str(args.threads)}
    found = {}
    for dtype in args.dtypes:
        if job == "picture":
            output = args.folder / f"picture-{dtype}.png"
            command = [args.outsize, "image", str(args.folder), "--prompt", PROMPT, "--steps", "2", "--force", "--output", str(output), "--compute", dtype]
            found[f"outsize, {dtype}"] = Command(command + ["--max-memory", "cpu=16GB"], env)
            found[f"outsize, {dtype}, in 800 MB"] = Command(command + ["--max-memory", "cpu=800MB"], env)
        else:
            command = [args.passes, str(args.folder / job), "16GB", "64", "64", dtype, "-"]
            found[f"outsize, {dtype}"] = Contender(command, env)
        if importlib.util.find_spec("diffusers"):
            worker = [sys.executable, __file__, str(args.folder), "--worker", job, "--dtypes", dtype, "--threads", str(args.threads)]
            found[f"diffusers, {dtype}"] = Contender(worker, env)
    if job == "picture" and importlib.util.find_spec("stable_diffusion_cpp"):
        worker = [sys.executable, __file__, str(args.folder), "--worker", "cpp", "--threads", str(args.threads)]
        found["stable-diffusion.cpp, f16"] = Contender(worker, env)
    return found


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--outsize", default=str(HERE.parent / "target/release/outsize"))
parser.add_argument("--passes", default=str(HERE.parent / "target/release/examples/picture_passes"), help="the example of that name")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--warm", type=int, default=1, help="rounds before those that count")
parser.add_argument("--only", choices=JOBS, nargs="+", default=JOBS)
parser.add_argument("--dtypes", choices=["f32", "bf16"], nargs="+", default=["f32", "bf16"])
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--worker", choices=JOBS + ["cpp"], help=argparse.SUPPRESS)
args = parser.parse_args()

if args.worker == "cpp":
    sys.exit(cpp_worker(args.folder, args.threads))
if args.worker:
    sys.exit(torch_worker(args.folder, args.worker, args.dtypes[0], args.threads))
print(f"{args.threads} threads, {args.rounds} rounds in turns after {args.warm}; medians, least and most, in seconds\n")
print("| | " + " | ".join(["a pass of the denoiser", "the decoder", "a picture of 2 steps"][JOBS.index(job)] for job in args.only) + " |")
print("|---|" + "---|" * len(args.only))
cells = {}
for number, job in enumerate(args.only):
    turns = contenders(args, job)
    times = {name: [] for name in turns}
    for _ in range(args.warm + args.rounds):
        for name, contender in turns.items():
            times[name].append(contender.turn())
            print(f"{job}, {name}: {times[name][-1]} s", file=sys.stderr)
    for name, contender in turns.items():
        contender.end()
        counted = [seconds for seconds in times[name][args.warm :] if seconds is not None]
        cell = f"{statistics.median(counted):.2f} ({min(counted):.2f} to {max(counted):.2f})" if counted else "failed"
        cells.setdefault(name, [""] * len(args.only))[number] = cell
for name, row in cells.items():
    print(f"| {name} | " + " | ".join(row) + " |")
