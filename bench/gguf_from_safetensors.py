"""Writes the weights of a Llama in safetensors as one GGUF file for llama.cpp: the same bf16 values, nothing quantised.

    python bench/gguf_from_safetensors.py MODEL OUT.gguf [TYPE FILE ...]

With types, such as Q8_0 and Q4_K_M, llama.cpp also quantises OUT.gguf, into a FILE each (needs llama-cpp-python). The vocabulary
is a dummy of the right size: benchmarks give token ids. Needs numpy and gguf.
"""

import json
import os
import pathlib
import struct
import sys

import gguf
import numpy as np

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def tensors(folder: pathlib.Path):
    """Names and values of all tensors, bf16 as unsigned 16-bit integers, without reading them."""
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            if tensor["dtype"] != "BF16":
                sys.exit(f"{path}: {name} is {tensor['dtype']}: only BF16 is written here")
            start = 8 + length + tensor["data_offsets"][0]
            yield name, np.memmap(path, dtype="<u2", mode="r", offset=start, shape=tuple(tensor["shape"]))


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as llama.cpp rotates them: neighbours in pairs, where transformers pairs the halves of a head."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}"


def widened(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << 16).view(np.float32)


def vocabulary(writer: gguf.GGUFWriter, size: int):
    types = gguf.TokenType
    tokens = [("<unk>", types.UNKNOWN), ("<s>", types.CONTROL), ("</s>", types.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", types.BYTE) for byte in range(256)]
    tokens += [(f"token{number}", types.NORMAL) for number in range(len(tokens), size)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token, _ in tokens[:size]])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([kind for _, kind in tokens[:size]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)


def write(folder: pathlib.Path, out: pathlib.Path):
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "llama":
        sys.exit(f"{folder}: model_type {config['model_type']}: only llama is written here")
    heads = config["num_attention_heads"]
    key_value_heads = config.get("num_key_value_heads", heads)
    # Beside its place, then renamed: a file that is there is whole.
    partial = out.with_name(out.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_value_heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    vocabulary(writer, config["vocab_size"])
    all_tensors = list(tensors(folder))
    # llama.cpp reads in the order of the file: of use.
    all_tensors.sort(key=lambda item: int(item[0].split(".")[2]) if ".layers." in item[0] else (-1 if "embed" in item[0] else 1 << 30))
    for name, values in all_tensors:
        if values.ndim == 1:
            writer.add_tensor_info(gguf_name(name), values.shape, np.dtype(np.float32), values.size * 4)
        else:
            shape = (values.shape[0], values.shape[1] * 2)  # in bytes
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.uint8), values.size * 2, gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, values in all_tensors:
        if values.ndim == 1:
            data = widened(values)
        elif name.endswith("q_proj.weight"):
            data = permuted(values, heads)
        elif name.endswith("k_proj.weight"):
            data = permuted(values, key_value_heads)
        else:
            data = values
        writer.write_tensor_data(np.ascontiguousarray(data).view(np.float32 if values.ndim == 1 else np.uint8))
    writer.close()
    os.rename(partial, out)


def quantise(path: str, kind: str, out: str):
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if llama_cpp.llama_model_quantize(path.encode(), out.encode(), parameters):
        sys.exit(f"{path}: llama.cpp cannot quantise it to {kind}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or len(sys.argv) % 2 == 0:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    for kind, file in zip(sys.argv[3::2], sys.argv[4::2]):
        quantise(sys.argv[2], kind, file)
