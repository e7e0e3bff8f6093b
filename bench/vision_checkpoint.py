"""Makes a checkpoint of random weights in the sizes of Qwen3-VL-2B (4.3 GB in bf16) and a photograph, to time images in prompts.

    pip install torch transformers safetensors pillow numpy
    python bench/vision_checkpoint.py OUT

OUT gets the checkpoint, with the tokenizer of a test fixture, and `photo.png` of 1024 x 768 pixels.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForImageTextToText

OUT = Path(sys.argv[1])
FIXTURE = Path(__file__).parents[1] / "crates/models/tests/fixtures/vision-qwen3_vl"
SHARD = 1_500_000_000
TEXT = {
    "model_type": "qwen3_vl_text",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5000000.0,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
VISION = {
    "model_type": "qwen3_vl_vision",
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "deepstack_visual_indexes": [5, 11, 17],
}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model("qwen3_vl", text_config=TEXT, vision_config=VISION, tie_word_embeddings=True)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    config.save_pretrained(OUT)
    generator = torch.Generator().manual_seed(0)
    shard, files = {}, {}

    def flush():
        name = f"model-{len(set(files.values())):05d}.safetensors"
        save_file(shard, OUT / name)
        files.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, parameter in model.named_parameters():
        is_norm = parameter.dim() == 1 and "norm" in name and name.endswith("weight")
        drawn = torch.randn(parameter.shape, generator=generator) * 0.02
        shard[name] = (torch.ones(parameter.shape) if is_norm else drawn).to(torch.bfloat16)
        if sum(2 * tensor.numel() for tensor in shard.values()) > SHARD:
            flush()
    flush()
    (OUT / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FIXTURE / file, OUT)
    size = {"shortest_edge": 65536, "longest_edge": 16777216}
    processor = {"size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (OUT / "preprocessor_config.json").write_text(json.dumps(processor))
    down, right = np.mgrid[0:768, 0:1024]
    pixels = np.stack([right % 256, down % 256, (right + down) % 256], -1).astype(np.uint8)
    Image.fromarray(pixels).save(OUT / "photo.png")


if __name__ == "__main__":
    main()
