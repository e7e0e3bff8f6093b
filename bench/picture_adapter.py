"""Makes a LoRA adapter of random values for all matrices and convolutions of a denoiser, as kohya's scripts write it.

    python bench/picture_adapter.py MODEL/unet OUT.safetensors 64

The number is the rank. Needs numpy and safetensors.
"""

import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file


def main(folder, out, rank):
    random, tensors = np.random.default_rng(0), {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "numpy") as weights:
            for name in weights.keys():
                shape = weights.get_slice(name).get_shape()
                if not name.endswith(".weight") or len(shape) < 2:
                    continue
                module = "lora_unet_" + name.removesuffix(".weight").replace(".", "_")
                draw = lambda sides, size: (random.standard_normal(sides, np.float32) * size).astype(np.float16)
                tensors[f"{module}.lora_down.weight"] = draw((rank, *shape[1:]), 0.02)
                tensors[f"{module}.lora_up.weight"] = draw((shape[0], rank, *[1] * (len(shape) - 2)), 0.002)
                tensors[f"{module}.alpha"] = np.array(rank, np.float16)
    save_file(tensors, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
