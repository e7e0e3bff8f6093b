"""Checks that Accelerate takes the device maps of `outsize plan --json`, and that `outsize plan --device-map` takes Accelerate's.

    python scripts/device_map.py target/release/outsize

Makes small checkpoints with `outsize synth`, plans them under several budgets, loads each by `load_checkpoint_and_dispatch` with the
map that was planned, and compares its logits with those of transformers without any map. Needs torch, transformers and accelerate.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from accelerate import (
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from accelerate.utils import check_device_map
from transformers import AutoConfig, AutoModelForCausalLM

IDS = torch.tensor([[5, 6, 7, 8, 300, 2]])

COMMON = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}

MODELS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    "qwen2 with a tied head": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
}


def outsize(binary, *arguments, fails=False):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def plan(binary, *arguments):
    return json.loads(outsize(binary, "plan", *arguments, "--json"))


def empty(folder):
    """The model without weights."""
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    model.tie_weights()
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def least(binary, folder):
    """The least budget that `outsize plan` asks for."""
    message = outsize(binary, "plan", folder, "--max-memory", "cpu=1MB", fails=True)
    return int(message.split("at least cpu=")[1].split()[0])


def ours_to_accelerate(binary, folder, expected, budget):
    planned = plan(binary, folder, "--max-memory", f"cpu={budget}")
    device_map = planned["device_map"]
    model = empty(folder)
    with warnings.catch_warnings():
        # Of names that match no module.
        warnings.simplefilter("error")
        check_device_map(model, device_map)
    with tempfile.TemporaryDirectory() as offload:
        model = load_checkpoint_and_dispatch(
            model, str(folder), device_map=device_map, offload_folder=offload, dtype=torch.float32
        )
        difference = (logits(model) - expected).abs().max().item()
    assert difference < 1e-4, f"logits differ by {difference}"
    places = sorted(set(map(str, device_map.values())))
    print(f"  cpu={budget}: {len(device_map)} entries on {', '.join(places)}; logits differ by {difference:.1e}")
    return places


def accelerate_to_ours(binary, folder, most):
    """`most` bytes of main memory, as Accelerate counts."""
    model = empty(folder)
    blocks = [type(model.model.layers[0]).__name__]
    theirs = infer_auto_device_map(
        model, max_memory={"cpu": most, "disk": 10**12}, no_split_module_classes=blocks, dtype=torch.float32
    )
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "map.json"
        path.write_text(json.dumps(theirs))
        taken = plan(binary, folder, "--device-map", path)
        yaml = Path(place) / "map.yaml"
        yaml.write_text("".join(f"{json.dumps(name)}: {json.dumps(tier)}\n" for name, tier in theirs.items()))
        assert plan(binary, folder, "--device-map", yaml)["device_map"] == taken["device_map"]
        # And back.
        again = Path(place) / "again.json"
        again.write_text(json.dumps(taken["device_map"]))
        assert plan(binary, folder, "--device-map", again)["device_map"] == taken["device_map"]
    assert taken["strategy"] == "manual", taken["strategy"]

    def tier(device_map, name):
        leads = [key for key in device_map if key in ("", name) or name.startswith(key + ".")]
        return device_map[max(leads, key=len)]

    stay = 0
    for name, tensor in model.state_dict().items():
        # What is small or tied to what stays may stay although the map offloads it.
        if tier(theirs, name) == "disk" and tier(taken["device_map"], name) != "disk":
            assert tensor.numel() * 4 < 65536, name
            stay += 1
        elif tier(theirs, name) != "disk":
            assert tier(taken["device_map"], name) == tier(theirs, name), name
    check_device_map(model, taken["device_map"])
    print(f"  Accelerate's map of {len(theirs)} entries is taken; {stay} small tensors stay in memory nevertheless")


def main():
    binary = sys.argv[1]
    for title, config in MODELS.items():
        print(title)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "config.json"
            path.write_text(json.dumps(COMMON | config))
            folder = Path(place) / "model"
            outsize(binary, "synth", path, folder, "--dtype", "f32", "--max-shard-size", "10MB")
            expected = logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
            bottom = least(binary, folder)
            places = set()
            for budget in (bottom, bottom + 8_000_000, bottom + 20_000_000, 1_000_000_000):
                places |= set(ours_to_accelerate(binary, folder, expected, budget))
            assert places == {"cpu", "disk"}, places
            for most in (1, 20_000_000, 1_000_000_000):
                accelerate_to_ours(binary, folder, most)
    print("all is well")


if __name__ == "__main__":
    main()
