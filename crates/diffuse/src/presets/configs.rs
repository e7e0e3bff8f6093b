//! What the configurations of built-in pipelines have otherwise than those that they begin with.

use serde_json::{Value, json};

/// The same levels as those of Stable Diffusion 1.5, narrower.
pub(super) fn tiny() -> Vec<Value> {
    vec![
        json!({
            "hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4,
            "num_hidden_layers": 4,
        }),
        json!({
            "attention_head_dim": 4, "block_out_channels": [64, 128, 256, 256],
            "cross_attention_dim": 96, "sample_size": 8,
        }),
        json!({ "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1, "sample_size": 64 }),
    ]
}

pub(super) fn xl() -> Vec<Value> {
    vec![
        json!({}),
        json!({
            "architectures": ["CLIPTextModelWithProjection"], "hidden_act": "gelu",
            "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20,
            "num_hidden_layers": 32, "projection_dim": 1280,
        }),
        json!({
            "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
            "attention_head_dim": [5, 10, 20], "block_out_channels": [320, 640, 1280],
            "cross_attention_dim": 2048, "projection_class_embeddings_input_dim": 2816,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "sample_size": 128, "transformer_layers_per_block": [1, 2, 10],
            "use_linear_projection": true,
        }),
        json!({ "sample_size": 1024, "scaling_factor": 0.13025 }),
    ]
}

/// Stable Diffusion 3.5 large, whose second text encoder is XL's.
pub(super) fn sd3() -> Vec<Value> {
    let projected =
        json!({ "architectures": ["CLIPTextModelWithProjection"], "projection_dim": 768 });
    let vae = json!({
        "latent_channels": 16, "sample_size": 1024, "scaling_factor": 1.5305,
        "shift_factor": 0.0609, "use_post_quant_conv": false, "use_quant_conv": false,
    });
    vec![projected, xl().remove(1), json!({}), json!({}), vae]
}

pub(super) fn sd3_tiny() -> Vec<Value> {
    let clip = |width| {
        json!({
            "hidden_size": width, "intermediate_size": 384, "num_attention_heads": 4,
            "num_hidden_layers": 2, "projection_dim": width,
        })
    };
    changed(
        sd3(),
        [
            clip(96),
            clip(128),
            json!({
                "d_ff": 512, "d_kv": 64, "d_model": 256, "num_decoder_layers": 4, "num_heads": 4,
                "num_layers": 4, "vocab_size": 1024,
            }),
            json!({
                "caption_projection_dim": 384, "dual_attention_layers": [0, 1],
                "joint_attention_dim": 256, "num_attention_heads": 6, "num_layers": 6,
                "pooled_projection_dim": 224,
            }),
            json!({ "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1 }),
        ],
    )
}

/// FLUX.1, told how closely to follow the text (dev) or not (schnell).
pub(super) fn flux(is_guided: bool) -> Vec<Value> {
    vec![
        json!({}),
        json!({}),
        json!({ "guidance_embeds": is_guided }),
        json!({
            "latent_channels": 16, "sample_size": 1024, "scaling_factor": 0.3611,
            "shift_factor": 0.1159, "use_post_quant_conv": false, "use_quant_conv": false,
        }),
    ]
}

pub(super) fn flux_tiny() -> Vec<Value> {
    changed(
        flux(true),
        [
            json!({
                "hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4,
                "num_hidden_layers": 2,
            }),
            json!({
                "d_ff": 512, "d_kv": 64, "d_model": 256, "num_decoder_layers": 4, "num_heads": 4,
                "num_layers": 4, "vocab_size": 1024,
            }),
            json!({
                "attention_head_dim": 64, "axes_dims_rope": [16, 24, 24], "joint_attention_dim": 256,
                "num_attention_heads": 8, "num_layers": 2, "num_single_layers": 4,
                "pooled_projection_dim": 96,
            }),
            json!({ "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1 }),
        ],
    )
}

/// Z-Image, whose autoencoder is that of FLUX.1.
pub(super) fn z_image() -> Vec<Value> {
    vec![json!({}), json!({}), flux(false).remove(3)]
}

pub(super) fn z_image_tiny() -> Vec<Value> {
    changed(
        z_image(),
        [
            json!({
                "head_dim": 32, "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6,
                "num_hidden_layers": 5, "num_key_value_heads": 2, "vocab_size": 1024,
            }),
            json!({
                "axes_dims": [16, 24, 24], "cap_feat_dim": 192, "dim": 384, "n_heads": 6,
                "n_kv_heads": 6, "n_layers": 4, "n_refiner_layers": 1,
            }),
            json!({ "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1 }),
        ],
    )
}

/// FLUX.2 klein 4B.
pub(super) fn klein() -> Vec<Value> {
    let vae = json!({
        "_class_name": "AutoencoderKLFlux2", "batch_norm_eps": 0.0001, "latent_channels": 32,
        "patch_size": [2, 2], "sample_size": 1024,
    });
    vec![json!({}), json!({}), vae]
}

/// FLUX.2 dev, whose autoencoder is klein's.
pub(super) fn flux2_dev() -> Vec<Value> {
    let transformer = json!({
        "guidance_embeds": true, "joint_attention_dim": 15_360, "num_attention_heads": 48,
        "num_layers": 8, "num_single_layers": 48,
    });
    vec![json!({}), transformer, klein().remove(2)]
}

pub(super) fn flux2_dev_tiny() -> Vec<Value> {
    let text = json!({ "text_config": {
        "head_dim": 32, "hidden_size": 128, "intermediate_size": 256, "model_type": "mistral",
        "num_attention_heads": 4, "num_hidden_layers": 31, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "rope_theta": 1e9, "sliding_window": null, "vocab_size": 1024,
    } });
    let [_, transformer, vae] = klein_tiny().try_into().unwrap_or_default();
    changed(flux2_dev(), [text, transformer, vae])
}

pub(super) fn klein_tiny() -> Vec<Value> {
    changed(
        klein(),
        [
            json!({
                "head_dim": 32, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
                "num_hidden_layers": 28, "num_key_value_heads": 2, "vocab_size": 1024,
            }),
            json!({
                "attention_head_dim": 64, "axes_dims_rope": [16, 16, 16, 16], "joint_attention_dim": 384,
                "num_attention_heads": 6, "num_layers": 2, "num_single_layers": 4,
            }),
            json!({ "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1 }),
        ],
    )
}

pub(super) fn qwen_image_tiny() -> Vec<Value> {
    vec![
        json!({
            "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6,
            "num_hidden_layers": 4, "num_key_value_heads": 2, "vocab_size": 1024,
        }),
        json!({
            "attention_head_dim": 64, "axes_dims_rope": [16, 24, 24], "joint_attention_dim": 192,
            "num_attention_heads": 4, "num_layers": 6,
        }),
        json!({ "base_dim": 24, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1 }),
    ]
}

/// The configurations of parts with these fields.
pub(super) fn changed<const N: usize>(mut parts: Vec<Value>, changes: [Value; N]) -> Vec<Value> {
    for (part, changes) in parts.iter_mut().zip(changes) {
        let (Value::Object(part), Value::Object(changes)) = (part, changes) else { continue };
        part.extend(changes);
    }
    parts
}

/// The scheduler of FLUX or Z-Image.
pub(super) fn flow_match(is_dynamic: bool, shift: f64) -> Value {
    json!({
        "_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256,
        "base_shift": 0.5, "max_image_seq_len": 4096, "max_shift": 1.15,
        "shift": shift, "use_dynamic_shifting": is_dynamic,
    })
}

/// The scheduler of Qwen-Image, whose last step begins with little noise.
pub(super) fn ends_early() -> Value {
    let mut scheduler = flow_match(true, 1.0);
    for (field, value) in [
        ("max_image_seq_len", json!(8192)),
        ("max_shift", json!(0.9)),
        ("shift_terminal", json!(0.02)),
        ("time_shift_type", json!("exponential")),
    ] {
        scheduler[field] = value;
    }
    scheduler
}
