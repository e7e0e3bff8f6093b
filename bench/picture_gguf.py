"""Writes a transformer of FLUX.1 as a GGUF file whose matrices are random blocks of Q4_K, to measure with.

    outsize synth flux-dev MODEL
    python bench/picture_gguf.py MODEL OUT.gguf
    outsize image OUT.gguf --base MODEL …

Of MODEL the configuration of the transformer is read alone. Tried with diffusers 0.42.1, gguf 0.19.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from diffusers import FluxTransformer2DModel

sys.path.append(str(Path(__file__).parent.parent / "scripts/fixtures"))
from transformer_files import flux

Q4_K = gguf.GGMLQuantizationType.Q4_K
BLOCK, BYTES = gguf.GGML_QUANT_SIZES[Q4_K]
# Scales of sixteen levels, and what is taken off them: weights of about 0.02, whose mean is 0.
SCALES = np.array([1.3e-4, 9.8e-4], dtype="float16").view("uint8")


def blocks(rows, columns, generator):
    data = generator.integers(0, 256, (rows * columns // BLOCK, BYTES), dtype="uint8")
    data[:, :4] = SCALES
    return data.reshape(rows, -1)


def main(model, out):
    config = FluxTransformer2DModel.load_config(Path(model) / "transformer")
    with torch.device("meta"):
        transformer = FluxTransformer2DModel.from_config(config)
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(out, "flux")
    shapes = {name: tensor.shape for name, tensor in flux(transformer.state_dict(), transformer.config).items()}
    is_matrix = lambda shape: len(shape) == 2 and shape[1] % BLOCK == 0
    for name, shape in shapes.items():
        size = (shape[0], shape[1] // BLOCK * BYTES) if is_matrix(shape) else tuple(shape)
        kind, dtype = (Q4_K, np.uint8) if is_matrix(shape) else (gguf.GGMLQuantizationType.F32, np.float32)
        writer.add_tensor_info(name, size, np.dtype(dtype), int(np.prod(size)) * np.dtype(dtype).itemsize, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in shapes.items():
        mean = 0 if name.endswith(".bias") else 1
        values = blocks(*shape, generator) if is_matrix(shape) else generator.normal(mean, 0.02, shape).astype("float32")
        writer.write_tensor_data(values)
    writer.close()


main(*sys.argv[1:])
