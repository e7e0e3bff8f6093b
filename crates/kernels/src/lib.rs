//! Matmuls with weights kept as stored, bf16, f16, f32 or in [blocks](BlockWeight), as a Burn
//! backend extension.
//!
//! A checkpoint stores the weight of a linear layer as `[out, in]`, row after row. Here it stays
//! that way, in the dtype it has on disk: [`linear`] multiplies f32 activations by it with f32
//! accumulation, and reads every weight from memory once. Nothing is transposed, converted or
//! copied ahead of the matmul.
//!
//! | module | its one job |
//! |---|---|
//! | [`linear()`], [`linear_tiles`], [`linear_two_tiles`], [`linear_qkv`], [`gated_linear`], [`gated_linear_tiles`], [`gated_mlp_tiles`], [`add_linear_in_out`], [`embedding`] | what a model does with its weights, over Burn tensors |
//! | [`extension`] | the same operations over Flex's own tensors |
//! | [`matmul`] | the matmul over slices; knows nothing of Burn |
//! | [`attend`], [`rms_norm`], [`layer_norm`], [`rotate`], [`activate`], [`gated`] | what a decoder layer does between its matmuls, over Burn tensors |
//! | [`layer_extension`] | the same over Flex's own tensors |
//! | [`causal_convolution()`], [`delta_rule()`], [`state_space()`] | linear attention, over Burn tensors |
//! | [`linear_attention_extension`] | the same over Flex's own tensors |
//! | [`convolution_into`], [`convolution_tiles`], [`add_convolution`], [`attend_pixels`], [`group_norm()`], [`gate_halves`], [`upsample_nearest`] | what models of pictures do besides, over Burn tensors |
//! | [`picture_extension`] | the same over Flex's own tensors |
//! | [`attention`], [`norm`], [`group_norm`](mod@group_norm), [`rotary`], [`activation`], [`causal_convolution`](mod@causal_convolution), [`delta_rule`](mod@delta_rule), [`state_space`](mod@state_space) | the same over slices |
//! | [`fetched_linear`], [`head_loss()`] | products with weights that are fetched anew, and the loss under such a head |
//! | [`head_scores`], [`TokenScore`] | how likely tokens are under such a head, or by logits |
//! | [`fetched`] | the first over Flex's own tensors |
//! | [`FetchedValues`] | values that are fetched anew, and blocks that are computed anew, for Burn's own operations |
//! | [`cross_entropy()`] | what a language model learns from, over Burn tensors |
//! | [`gpu`] | GPUs, and weights on them as stored |
//! | [`loss_extension`] | the same over Flex's own tensors |
//! | [`gradient`] | the backward passes of matmuls, of a decoder layer and of the loss, over slices |
//! | `autodiff` | the same as steps of Burn's autodiff graph |
//! | [`cast`] | conversions between dtypes over slices |
//! | [`peak`] | what the processor can do at most |
//! | [`Isa`] | which vector instructions this processor has |
//!
//! # The contract
//!
//! For `y = x · Wᵀ` with `x [m, k]` and `W [n, k]`, the bits of `y[i, j]` depend on the bits of row
//! `i` of `x`, the bits of row `j` of `W`, the [`Isa`] and the [`ActivationDtype`], **and on
//! nothing else**: not on `m` or `n`, not on where the rows stand in their matrices or in memory,
//! not on the number of threads or how work is shared among them. So a matmul over a slice of the
//! weight's rows is that slice of the whole matmul, and a sequence gives the same logits alone as
//! in a batch. (The payload of a NaN is not part of the contract; that it is a NaN is.)
//!
//! It holds by construction: each output has one vector accumulator which takes `k` in order, one
//! multiply-add per vector, the last one padded with zeros; at the end the lanes are added in one
//! fixed tree. Blocking only chooses which outputs are computed side by side. [`Isa::AmxBf16`]
//! multiplies bf16 weights in tiles instead, whose instructions add in one order of their own, for
//! one row of activations as for many.
//!
//! # Accuracy
//!
//! Weights are widened exactly; products and sums are f32, fused where the processor can. With `s =
//! Σ |x[i, l] · W[j, l]|` the error of `y[i, j]` is at most `(k / 4 + 4) · 2⁻²³ · s`, barring
//! overflow and underflow: a lane makes at most `k / 4` multiply-adds, of at most two roundings of
//! `2⁻²⁴` each, and the tree at most four additions.
//!
//! With weights in bf16 and [`Isa::AmxBf16`], activations are cut into three parts of bf16 which
//! add up to them exactly, so that the same bound holds; `k / 32 · 3 + 16` roundings take its
//! place. Numbers below the least normal one, given or made, count as zero there. What is not
//! finite comes out as with multiply-adds.
//!
//! Under [`ActivationDtype::Bf16`] activations are rounded to bf16 first, and the same holds for
//! what they are rounded to. With weights in bf16 and [`Isa::Avx512Bf16`] or [`Isa::AmxBf16`],
//! pairs of products are added in one instruction, which takes subnormal numbers for zero. So they
//! are with weights in GGUF's Q3_K to Q6_K, whose scales and offsets multiply sums of products: `s`
//! is then made of encoded numbers times their scales, and of offsets, each without its sign.

pub mod activation;
mod activation_dtype;
pub mod attention;
mod autodiff;
mod blocks;
mod buffer;
pub mod cast;
pub mod causal_convolution;
pub mod delta_rule;
mod device;
mod exp;
pub mod extension;
pub mod fetched;
mod fetched_value;
pub mod gpu;
pub mod gradient;
pub mod group_norm;
mod head_loss;
mod integer_rounding;
mod integers;
mod isa;
mod layer;
pub mod layer_extension;
mod linear;
mod linear_attention;
pub mod linear_attention_extension;
mod loops;
mod loss;
pub mod loss_extension;
pub mod matmul;
pub mod norm;
mod packed_bf16;
pub mod peak;
mod picture;
pub mod picture_extension;
mod quants;
mod recomputed;
pub mod rotary;
mod simd;
mod state_matrix;
mod state_rows;
pub mod state_space;
mod thread_pool;
mod tiled_extension;
mod token_score;
mod weight;
mod weight_tensor;

pub use activation::ActivationFunction;
pub use activation_dtype::ActivationDtype;
pub use blocks::{BlockWeight, widen_e4m3};
pub use buffer::{BufferReuse, free_buffers};
pub use delta_rule::DeltaGates;
pub use device::{has_kernels, index_dtype, is_flex, is_gpu};
pub use fetched::{
    FetchedOperand, FetchedWeight, GRADIENT_PIECE, GradientRows, WeightTiles, fetched_linear,
};
pub use fetched_value::{FetchedValue, FetchedValues, fetching_device};
pub use head_loss::{
    FetchedHead, HEAD_TOKENS, HeadGradient, HeadLoss, head_gradient, head_loss, head_scores,
};
pub use integer_rounding::IntegerRounding;
pub use integers::integer_value;
pub use isa::Isa;
pub use layer::{
    KvTensors, activate, add_layer_norm, add_rms_norm, attend, attend_tokens, gated, has_gate,
    layer_norm, rms_norm, rotate,
};
pub use linear::{
    add_linear_in_out, embedding, gated_linear, gated_linear_tiles, gated_mlp_tiles, linear,
    linear_qkv, linear_three, linear_tiles, linear_two_tiles, linear_with,
};
pub use linear_attention::{causal_convolution, delta_rule, state_space};
pub use loss::cross_entropy;
pub use matmul::ConvolutionWindow;
pub use packed_bf16::{PackedBf16Scan, pack_bf16};
pub use picture::{
    add_convolution, attend_pixels, convolution_into, convolution_tiles, gate_halves, group_norm,
    group_sums, normalize_groups, unwritten, upsample_nearest,
};
pub use recomputed::RecomputedBlock;
pub use rotary::RotaryPairs;
pub use state_matrix::{LinearAttentionHeads, STATE_COLUMNS};
pub use state_rows::StateRows;
pub use state_space::StateRule;
pub use token_score::TokenScore;
pub use weight::Weight;
pub use weight_tensor::{WeightOperand, WeightTensor};

/// Threads that a large matmul is shared among: those of the current rayon pool.
pub fn threads() -> usize {
    rayon::current_num_threads()
}
