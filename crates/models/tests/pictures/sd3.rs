//! The transformer of Stable Diffusion 3 against what `diffusers` computes in float32
//! (`scripts/fixtures/sd3.py`), dispatched from its checkpoints.

use crate::common::components::{
    SD3S, assert_reads_once, assert_writes_saved_names, config, denoise_sd3, expected, load,
    placed, refused, rounded, tensor, values,
};
use crate::common::reference::assert_close;
use burn::tensor::{DType, Device, Tensor};
use outsize_models::arch::Sd3Transformer2dModel;
use outsize_models::{Component, ComponentConfig, PicturePass, PictureSize};
use serde_json::json;

#[test]
fn transformers_give_the_reference() {
    for name in SD3S {
        let found = load(name).run(|model| denoise_sd3(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    SD3S.iter().for_each(|name| placed(name, denoise_sd3));
}

#[test]
fn rounded_activations_stay_near_the_reference() {
    SD3S.iter().for_each(|name| rounded(name, denoise_sd3));
}

#[test]
fn a_pass_reads_each_streamed_weight_once() {
    let text = r#"{"_class_name": "SD3Transformer2DModel", "num_layers": 6, "num_attention_heads": 4,
        "attention_head_dim": 64, "caption_projection_dim": 256, "joint_attention_dim": 96,
        "pooled_projection_dim": 64, "pos_embed_max_size": 8, "qk_norm": "rms_norm",
        "dual_attention_layers": [0, 1, 5]}"#;
    fn ones<const D: usize>(sides: [usize; D]) -> Tensor<D> {
        Tensor::ones(sides, (&Device::flex(), DType::F32))
    }
    assert_reads_once(text, |model: &Sd3Transformer2dModel| {
        let (pooled, context) = (ones([2, 64]), ones([2, 5, 96]));
        drop(model.forward(ones([2, 12, 64]), [4, 3], 7.0, pooled, context));
    });
}

#[test]
fn pictures_of_a_batch_have_the_bits_that_they_have_alone() {
    let name = "sd3-dual";
    let model = load::<Sd3Transformer2dModel>(name);
    let both = model.run(|model| denoise_sd3(name, model)).unwrap();
    let one = |picture: usize| {
        let device = Device::flex();
        let [latents, context] = ["latents", "context"]
            .map(|what| tensor::<3>(name, what, &device).narrow(0, picture, 1));
        let pooled = tensor::<2>(name, "pooled", &device).narrow(0, picture, 1);
        let forward = |model: &Sd3Transformer2dModel| {
            values(model.forward(latents, [4, 3], 641.25, pooled, context))
        };
        model.run(forward).unwrap()
    };
    let alone = [one(0), one(1)].concat();
    assert!(alone.iter().zip(&both).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert_eq!(alone.len(), both.len());
}

#[test]
fn tensors_of_a_checkpoint_that_is_written_have_the_names_of_diffusers() {
    SD3S.into_iter().for_each(assert_writes_saved_names::<Sd3Transformer2dModel>);
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (field, value) in [
        ("_class_name", json!("FluxTransformer2DModel")),
        ("attention_head_dim", json!(0)),
        ("caption_projection_dim", json!(12)),
        ("dual_attention_layers", json!([0.5])),
        ("dual_attention_layers", json!("all")),
        ("num_layers", json!(0)),
        ("patch_size", json!(1)),
        ("pos_embed_max_size", json!(1 << 20)),
        ("qk_norm", json!("layer_norm")),
        ("sample_size", json!(-1)),
    ] {
        refused::<Sd3Transformer2dModel>("sd3", field, value);
    }
}

#[test]
fn configurations_are_read() {
    let [plain, normed, dual] = SD3S.map(|name| config::<Sd3Transformer2dModel>(name).config);
    assert_eq!([plain.has_norms, normed.has_norms], [false, true]);
    assert_eq!(dual.packed_channels(), [8, 8]);
    assert_eq!((dual.dual_attention_layers, dual.pos_embed_max_size), (vec![0, 2], 11));
    let defaults = r#"{"_class_name": "SD3Transformer2DModel"}"#;
    let usual = ComponentConfig::<Sd3Transformer2dModel>::from_json(defaults).unwrap().config;
    assert_eq!((usual.num_layers, usual.packed_channels(), usual.sample_size), (18, [64; 2], 128));
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = PictureSize { batch: usize::MAX, rows: usize::MAX, columns: usize::MAX };
    let transformer = config::<Sd3Transformer2dModel>("sd3");
    assert!(transformer.model().activation_bytes(huge, usize::MAX, 2) > 1 << 60);
}

#[test]
fn work_is_counted_weight_by_weight() {
    let transformer = config::<Sd3Transformer2dModel>("sd3-dual");
    let pass = PicturePass { latents: PictureSize { batch: 2, rows: 4, columns: 3 }, tokens: 5 };
    let (image, text) = (2 * 12, 2 * 5);
    for (path, expected) in [
        ("pos_embed.proj.weight", (image, 0)),
        ("time_text_embed.timestep_embedder.linear_1.weight", (1, 0)),
        ("time_text_embed.text_embedder.linear_1.weight", (2, 0)),
        ("context_embedder.weight", (text, 0)),
        ("transformer_blocks.0.norm1.linear.weight", (2, 0)),
        ("transformer_blocks.0.attn.to_q.weight", (image, 17)),
        ("transformer_blocks.0.attn.add_q_proj.weight", (text, 17)),
        ("transformer_blocks.0.attn2.to_q.weight", (image, 12)),
        ("transformer_blocks.0.attn2.to_out.0.weight", (image, 0)),
        ("transformer_blocks.0.attn.to_add_out.weight", (text, 0)),
        ("transformer_blocks.0.ff_context.net.2.weight", (text, 0)),
        ("transformer_blocks.2.ff.net.0.proj.weight", (image, 0)),
        ("norm_out.linear.weight", (2, 0)),
        ("proj_out.weight", (image, 0)),
    ] {
        assert!(transformer.weights().iter().any(|weight| weight.name == path), "{path}");
        let used = Sd3Transformer2dModel::weight_use(&transformer.config, path, &pass);
        assert_eq!((used.rows, used.attended), expected, "{path}");
    }
}
