//! The architectures of GGUF files.

use Convention::*;

/// Architectures of llama.cpp, what transformers calls them, and what is otherwise there.
pub(super) const ARCHITECTURES: &[(&str, &str, &[Convention])] = &[
    ("llama", "llama", &[Neighbours, OneWidth]),
    ("mistral3", "llama", &[HeadDim, Neighbours]),
    ("llama4", "llama4_text", &[HeadDim]),
    ("qwen2", "qwen2", &[]),
    ("qwen3", "qwen3", &[HeadDim]),
    // What sees images is in a file of its own.
    ("qwen2vl", "qwen2", &[]),
    ("qwen3vl", "qwen3", &[HeadDim]),
    ("qwen3vlmoe", "qwen3_moe", &[HeadDim]),
    ("gemma", "gemma", &[HeadDim, OneAdded]),
    ("gemma2", "gemma2", &[HeadDim, OneAdded]),
    ("gemma3", "gemma3_text", &[HeadDim, OneAdded]),
    ("gemma3n", "gemma3n_text", &[]),
    ("gemma4", "gemma4_text", &[]),
    ("granite", "granite", &[Neighbours]),
    ("granitemoe", "granitemoe", &[Neighbours, OneWidth]),
    ("granitehybrid", "granitemoehybrid", &[Neighbours, OneWidth]),
    ("smollm3", "smollm3", &[Neighbours]),
    ("arcee", "arcee", &[Neighbours]),
    ("jais2", "jais2", &[]),
    ("stablelm", "stablelm", &[]),
    ("apertus", "apertus", &[HeadDim]),
    ("phi2", "phi", &[]),
    ("olmo", "olmo", &[Neighbours]),
    ("olmo2", "olmo2", &[]),
    ("nemotron", "nemotron", &[OneAdded]),
    ("lfm2", "lfm2", &[]),
    ("lfm2moe", "lfm2_moe", &[]),
    ("exaone", "exaone", &[]),
    ("exaone4", "exaone4", &[]),
    ("exaone-moe", "exaone_moe", &[HeadDim]),
    ("command-r", "cohere", &[]),
    ("cohere2", "cohere2", &[]),
    ("cohere2moe", "cohere2_moe", &[HeadDim]),
    ("glm4", "glm4", &[HeadDim, Biases]),
    ("ernie4_5", "ernie4_5", &[HeadDim]),
    ("ernie4_5-moe", "ernie4_5_moe", &[HeadDim]),
    ("hunyuan-dense", "hunyuan_v1_dense", &[]),
    ("hunyuan-moe", "hunyuan_v1_moe", &[OneWidth]),
    ("hy_v3", "hy_v3", &[HeadDim]),
    ("dots1", "dots1", &[HeadDim, SharedExperts]),
    ("seed_oss", "seed_oss", &[HeadDim, Biases]),
    ("starcoder2", "starcoder2", &[Biases]),
    ("minimax-m2", "minimax_m2", &[HeadDim, OneWidth]),
    ("phi3", "phi3", &[]),
    ("phimoe", "phimoe", &[OneWidth]),
    ("qwen2moe", "qwen2_moe", &[]),
    ("qwen3moe", "qwen3_moe", &[HeadDim]),
    ("olmoe", "olmoe", &[OneWidth]),
    ("gpt-oss", "gpt_oss", &[HeadDim, Biases, OneWidth]),
    ("deepseek2", "deepseek_v2", &[LatentAttention, SharedExperts]),
    ("deepseek32", "deepseek_v32", &[LatentAttention, SharedExperts]),
    ("deepseek4", "deepseek_v4", &[HeadDim]),
    ("kimi-linear", "kimi_linear", &[LatentAttention]),
    ("glm4moe", "glm4_moe", &[SharedExperts]),
    ("glm-dsa", "glm_moe_dsa", &[LatentAttention, SharedExperts]),
    ("afmoe", "afmoe", &[HeadDim]),
    ("laguna", "laguna", &[HeadDim]),
    ("mellum", "mellum", &[HeadDim]),
    ("minimax-m3", "minimax_m3_vl_text", &[HeadDim, OneAdded]),
    ("mimo2", "mimo_v2_flash", &[HeadDim]),
    ("step35", "step3p5", &[HeadDim, OneAdded]),
    ("qwen3next", "qwen3_next", &[HeadDim, LinearAttention]),
    ("qwen35", "qwen3_5_text", &[HeadDim, LinearAttention]),
    ("qwen35moe", "qwen3_5_moe_text", &[HeadDim, LinearAttention]),
    ("nemotron_h", "nemotron_h", &[]),
    ("nemotron_h_moe", "nemotron_h", &[]),
    ("falcon-h1", "falcon_h1", &[]),
    ("jamba", "jamba", &[OneWidth]),
    ("mamba", "mamba", &[]),
    ("mamba2", "mamba2", &[]),
];

/// What GGUF files of an architecture have otherwise than transformers, or have to say where that
/// takes something else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Convention {
    /// The width of heads is said, if it is their share too.
    HeadDim,
    /// So it is whether queries, keys and values have biases.
    Biases,
    /// Rows of queries and keys are in the order in which neighbours are rotated together.
    Neighbours,
    /// One is already added to the weights of norms.
    OneAdded,
    /// Keys and values come of one vector.
    LatentAttention,
    /// Attention without scores.
    LinearAttention,
    /// Experts as DeepSeek's, some of which all tokens go to.
    SharedExperts,
    /// Experts are the only MLPs, and have the width of those.
    OneWidth,
}
