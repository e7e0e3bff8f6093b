//! What passes of the modules of Stable Diffusion, FLUX, Z-Image and Qwen-Image, and of those that
//! see images, allocate, by a counting allocator, against what the modules say. One test: the
//! counter sees all threads.

use burn::tensor::{DType, Device, Tensor};
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, DecoderTextEncoder,
    Flux2Transformer2dModel, FluxTransformer2dModel, GlmVisionModel, InternVlVisionModel,
    KimiVisionModel, Llama4VisionModel, PixtralVisionModel, QwenImageTransformer2dModel,
    QwenVisionModel, Sd3Transformer2dModel, SiglipVisionModel, T5EncoderModel, TextFilling,
    Unet2dConditionModel, ZImageTransformer2dModel,
};
use outsize_models::{Architecture, Component, ComponentConfig, Init, PictureSize, VisionModel};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The bytes that a second run of `work` has allocated at most: the first makes weights, and memory
/// that threads keep.
fn peak<T>(work: impl Fn() -> T) -> u64 {
    work();
    outsize_kernels::free_buffers();
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    work();
    ALLOCATOR.peak_usage().saturating_sub(before) as u64
}

fn read<C: Component>(class: &str, more: &str) -> ComponentConfig<C> {
    let is_encoder = ["clip", "t5", "qwen"].iter().any(|kind| class.starts_with(kind));
    let key = if is_encoder { "model_type" } else { "_class_name" };
    ComponentConfig::from_json(&format!(r#"{{"{key}": "{class}"{more}}}"#)).unwrap()
}

fn zeros<const D: usize>(sides: [usize; D]) -> Tensor<D> {
    Tensor::zeros(sides, (&Device::flex(), DType::F32))
}

/// `said` for a number of threads. How many take part is the system's choice: at most all, and at
/// least one.
fn check(what: &str, peak: u64, said: impl Fn(usize) -> u64) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let [one, all] = [1, threads].map(said);
    println!("{what}: {peak} of {one} to {all} bytes");
    assert!(peak <= all, "{what} allocates {peak} bytes, but says {all}");
    assert!(2 * peak >= one, "{what} allocates {peak} bytes only, but says {one} for one thread");
}

/// A pass over one image, and its features.
fn sees<M: VisionModel>(config: &str, sides: [usize; 2], init: &Init) {
    let part = ComponentConfig::<M>::from_json(config).unwrap();
    let model = M::new(&part.config, init);
    let patches = sides[0] * sides[1];
    let values = M::layout(&part.config).patch_values();
    let measured = peak(|| model.see(zeros([patches, values]), sides));
    let said = |threads| part.model().activation_bytes(patches, threads);
    check(&format!("vision model, {patches} patches of {config}"), measured, said);
}

#[test]
fn memory_is_what_is_said() {
    let _reuse = outsize_kernels::BufferReuse::begin();
    let init = Init::new(&Device::flex());
    let text = r#", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "vocab_size": 100, "max_position_embeddings": 512"#;
    let clip = read::<ClipTextModel>("clip_text_model", text);
    let model = ClipTextModel::new(&clip.config, &init);
    let measured = peak(|| model.forward(&[3; 1024], 2).unwrap());
    check("text encoder", measured, |threads| clip.model().activation_bytes(2, 512, threads));

    for (inner, heads, function) in [(256, 4, "gated-gelu"), (64, 2, "relu")] {
        let more = format!(
            r#", "d_model": 64, "d_ff": {inner}, "num_layers": 2, "num_heads": {heads}, "d_kv": 16, "vocab_size": 100,
               "feed_forward_proj": "{function}""#
        );
        let t5 = read::<T5EncoderModel>("t5", &more);
        let model = T5EncoderModel::new(&t5.config, &init);
        let measured = peak(|| model.forward(&[3; 1024], 2).unwrap());
        let said = |threads| t5.model().activation_bytes(2, 512, threads);
        check(&format!("text encoder, {function}"), measured, said);
    }

    for (heads, batch, tokens) in [(4, 2, 77), (2, 1, 512), (1, 1, 33)] {
        let more = format!(
            r#", "num_attention_heads": {heads}, "attention_head_dim": 32, "axes_dims_rope": [8, 12, 12],
               "num_layers": 2, "num_single_layers": 2, "joint_attention_dim": 64, "pooled_projection_dim": 32"#
        );
        let flux = read::<FluxTransformer2dModel>("FluxTransformer2DModel", &more);
        let model = FluxTransformer2dModel::new(&flux.config, &init);
        // A picture and one to go by.
        let size = PictureSize { batch, rows: 1200, columns: 1 };
        let (latents, pooled) = (zeros([batch, 1200, 64]), zeros([batch, 32]));
        let context = zeros([batch, tokens, 64]);
        let measured = peak(|| {
            let texts = (pooled.clone(), context.clone());
            model.forward(latents.clone(), &[[40, 20], [20, 20]], 7.0, None, texts.0, texts.1)
        });
        let said = |threads| flux.model().activation_bytes(size, tokens, threads);
        check(&format!("transformer of {heads} heads, {tokens} tokens"), measured, said);
    }

    for (heads, batch, tokens, dual) in
        [(4, 2, 77, "[0, 1]"), (2, 1, 333, "[]"), (3, 2, 333, "[1]"), (1, 1, 33, "[0, 1, 2]")]
    {
        let more = format!(
            r#", "num_attention_heads": {heads}, "attention_head_dim": 32, "caption_projection_dim": {},
               "num_layers": 3, "joint_attention_dim": 64, "pooled_projection_dim": 32, "qk_norm": "rms_norm",
               "pos_embed_max_size": 40, "dual_attention_layers": {dual}"#,
            32 * heads
        );
        let sd3 = read::<Sd3Transformer2dModel>("SD3Transformer2DModel", &more);
        let model = Sd3Transformer2dModel::new(&sd3.config, &init);
        let size = PictureSize { batch, rows: 40, columns: 30 };
        let (latents, pooled) = (zeros([batch, 1200, 64]), zeros([batch, 32]));
        let context = zeros([batch, tokens, 64]);
        let measured = peak(|| {
            let texts = (pooled.clone(), context.clone());
            model.forward(latents.clone(), [40, 30], 7.0, texts.0, texts.1)
        });
        let said = |threads| sd3.model().activation_bytes(size, tokens, threads);
        check(&format!("transformer of Stable Diffusion 3, {heads} heads, {dual}"), measured, said);
    }

    for (heads, batch, tokens, ratio) in [(4, 2, 77, 3.0), (2, 1, 512, 3.0), (3, 2, 40, 2.0)] {
        let more = format!(
            r#", "num_attention_heads": {heads}, "attention_head_dim": 32, "axes_dims_rope": [8, 8, 8, 8],
               "num_layers": 2, "num_single_layers": 2, "joint_attention_dim": 64, "mlp_ratio": {ratio}, "in_channels": 64"#
        );
        let flux2 = read::<Flux2Transformer2dModel>("Flux2Transformer2DModel", &more);
        let model = Flux2Transformer2dModel::new(&flux2.config, &init);
        // A picture and one to go by.
        let size = PictureSize { batch, rows: 1500, columns: 1 };
        let (latents, context) = (zeros([batch, 1500, 64]), zeros([batch, tokens, 64]));
        let sizes = [[40, 30], [15, 20]];
        let measured = peak(|| model.forward(latents.clone(), &sizes, 7.0, None, context.clone()));
        let said = |threads| flux2.model().activation_bytes(size, tokens, threads);
        check(&format!("transformer of FLUX.2, {heads} heads, {tokens} tokens"), measured, said);
    }

    for (heads, width, texts, size) in [
        (4, 32, &[77, 40][..], [40, 30]),
        (2, 48, &[512], [40, 30]),
        (1, 96, &[33], [20, 30]),
        (6, 32, &[5; 3], [9, 7]),
    ] {
        let [quarter, rest] = [width / 4, 3 * width / 8];
        let more = format!(
            r#", "dim": {}, "n_heads": {heads}, "axes_dims": [{quarter}, {rest}, {rest}], "n_layers": 2,
               "n_refiner_layers": 1, "cap_feat_dim": 64"#,
            heads * width
        );
        let part = read::<ZImageTransformer2dModel>("ZImageTransformer2DModel", &more);
        let model = ZImageTransformer2dModel::new(&part.config, &init);
        let (batch, longest) = (texts.len(), texts.iter().copied().max().unwrap());
        let latents = zeros([batch, size[0] * size[1], 64]);
        let context = zeros([batch, longest, 64]);
        let measured = peak(|| model.forward(latents.clone(), size, 0.7, context.clone(), texts));
        let [rows, columns] = size;
        let said = |threads| {
            part.model().activation_bytes(PictureSize { batch, rows, columns }, longest, threads)
        };
        check(
            &format!("transformer of Z-Image, {heads} heads, texts of {texts:?}"),
            measured,
            said,
        );
    }

    for (heads, width, texts, sizes, zero_cond_t) in [
        (4, 32, &[77, 40][..], &[[40, 30]][..], false),
        (2, 48, &[512], &[[40, 30]], false),
        (1, 96, &[33], &[[20, 30]], true),
        (6, 32, &[300, 200], &[[9, 7]], false),
        (2, 64, &[60, 20], &[[8, 9], [30, 20], [10, 30]], false),
        (2, 64, &[60, 20], &[[8, 9], [30, 20], [10, 30]], true),
        (1, 96, &[33], &[[30, 30], [30, 31]], true),
    ] {
        let [quarter, rest] = [width / 4, 3 * width / 8];
        let more = format!(
            r#", "num_attention_heads": {heads}, "attention_head_dim": {width}, "axes_dims_rope": [{quarter}, {rest}, {rest}],
               "num_layers": 2, "joint_attention_dim": 64, "zero_cond_t": {zero_cond_t}"#
        );
        let part = read::<QwenImageTransformer2dModel>("QwenImageTransformer2DModel", &more);
        let model = QwenImageTransformer2dModel::new(&part.config, &init);
        let (batch, longest) = (texts.len(), texts.iter().copied().max().unwrap());
        let rows = sizes.iter().map(|[rows, columns]| rows * columns).sum();
        let latents = zeros([batch, rows, 64]);
        let context = zeros([batch, longest, 64]);
        let measured = peak(|| model.forward(latents.clone(), sizes, 7.0, context.clone(), texts));
        let said = |threads| {
            let size = PictureSize { batch, rows, columns: 1 };
            part.model().activation_bytes(size, longest, threads)
        };
        check(
            &format!("transformer of Qwen-Image, {heads} heads, texts of {texts:?}, {sizes:?}"),
            measured,
            said,
        );
    }

    // Attention, the MLP, mergers, or the table of positions and the pixels need most.
    for (hidden, heads, inner, out, positions, deepstack, sides) in [
        (64, 4, 96, 64, 400, "[0, 1]", [32, 48]),
        (64, 2, 512, 64, 400, "[]", [32, 30]),
        (32, 2, 32, 512, 400, "[0, 1, 2]", [24, 40]),
        (32, 1, 32, 32, 90_000, "[]", [8, 8]),
    ] {
        let config = format!(
            r#"{{"model_type": "qwen3_vl", "text_config": {{"model_type": "qwen3_vl_text", "hidden_size": {out}}}, "vision_config": {{
                "hidden_size": {hidden}, "num_heads": {heads}, "intermediate_size": {inner}, "out_hidden_size": {out}, "depth": 3,
                "num_position_embeddings": {positions}, "deepstack_visual_indexes": {deepstack}, "patch_size": 8}}}}"#
        );
        sees::<QwenVisionModel>(&config, sides, &init);
    }
    for (hidden, heads, inner, out, side, sides) in [
        (64, 4, 96, 64, 160, [32, 48]),
        (64, 2, 96, 512, 160, [32, 30]),
        (32, 2, 2048, 32, 160, [24, 40]),
        (32, 1, 32, 32, 2400, [8, 8]),
    ] {
        let config = format!(
            r#"{{"model_type": "glm4v", "text_config": {{"model_type": "glm4v_text", "hidden_size": {out}, "num_attention_heads": 1,
                "rope_parameters": {{"rope_type": "default", "mrope_section": [{pairs}, 0, 0]}}}}, "vision_config": {{
                "hidden_size": {hidden}, "num_heads": {heads}, "intermediate_size": {inner}, "out_hidden_size": {out}, "depth": 3,
                "image_size": {side}, "patch_size": 8}}}}"#,
            pairs = out / 2
        );
        sees::<GlmVisionModel>(&config, sides, &init);
    }
    // Some blocks have windows of some sizes in Muse.
    for (hidden, heads, inner, out, table, sides) in [
        (64, 4, 96, 64, 14, [32, 48]),
        (64, 2, 512, 64, 12, [32, 30]),
        (32, 2, 32, 1024, 10, [24, 40]),
        (32, 1, 32, 32, 300, [8, 8]),
    ] {
        let vision = format!(
            r#""hidden_size": {hidden}, "num_attention_heads": {heads}, "intermediate_size": {inner}, "num_hidden_layers": 3,
                "patch_size": 8, "pos_emb_height": {table}, "pos_emb_width": {table}"#
        );
        let kimi = format!(
            r#"{{"model_type": "kimi_k25", "projection_hidden_size": {hidden}, "text_config": {{"hidden_size": {out}}},
                "vision_config": {{{vision}}}}}"#
        );
        sees::<KimiVisionModel>(&kimi, sides, &init);
        for projector in [32, 256] {
            let muse = format!(
                r#"{{"model_type": "muse_glimmer", "out_hidden_size": {merged}, "projector_hidden_size": {projector},
                    "text_config": {{"hidden_size": {out}}}, "vision_config": {{{vision}}}}}"#,
                merged = 4 * hidden
            );
            sees::<KimiVisionModel>(&muse, sides, &init);
        }
    }
    for (hidden, heads, inner, out, sides) in
        [(64, 4, 96, 64, [32, 48]), (64, 2, 512, 64, [32, 30]), (32, 2, 32, 1024, [24, 40])]
    {
        let config = format!(
            r#"{{"model_type": "mistral3", "text_config": {{"model_type": "mistral", "hidden_size": {out}}}, "vision_config": {{
                "model_type": "pixtral", "hidden_size": {hidden}, "num_attention_heads": {heads}, "intermediate_size": {inner},
                "num_hidden_layers": 3, "patch_size": 8}}}}"#
        );
        sees::<PixtralVisionModel>(&config, sides, &init);
    }

    for (hidden, heads, inner, out, side, tokens) in
        [(64, 4, 96, 64, 256, 64), (64, 2, 512, 64, 224, 49), (32, 2, 32, 1024, 256, 256)]
    {
        let config = format!(
            r#"{{"model_type": "gemma3", "text_config": {{"model_type": "gemma3_text", "hidden_size": {out}}}, "vision_config": {{
                "model_type": "siglip_vision_model", "hidden_size": {hidden}, "num_attention_heads": {heads},
                "intermediate_size": {inner}, "num_hidden_layers": 3, "image_size": {side}, "patch_size": 8}},
                "mm_tokens_per_image": {tokens}}}"#
        );
        sees::<SiglipVisionModel>(&config, [side / 8; 2], &init);
    }

    for (hidden, heads, features, out, side, tiles) in [
        (64, 4, 64, 64, 176, 3),
        (64, 2, 1024, 64, 112, 3),
        (32, 2, 16, 2048, 176, 1),
        (64, 1, 32, 32, 176, 2),
    ] {
        let config = format!(
            r#"{{"model_type": "llama4", "text_config": {{"model_type": "llama4_text", "hidden_size": {out}}}, "vision_config": {{
                "model_type": "llama4_vision_model", "hidden_size": {hidden}, "num_attention_heads": {heads},
                "intermediate_size": {inner}, "num_hidden_layers": 3, "image_size": {side}, "patch_size": 8,
                "projector_input_dim": {features}, "projector_output_dim": {features}, "vision_output_dim": {features}}}}}"#,
            inner = 4 * hidden
        );
        sees::<Llama4VisionModel>(&config, [tiles * side / 8, side / 8], &init);
        for (norm, inner) in [("layer_norm", 2 * hidden), ("rms_norm", 8 * hidden)] {
            let config = format!(
                r#"{{"model_type": "internvl", "text_config": {{"model_type": "qwen3", "hidden_size": {out}}}, "vision_config": {{
                    "hidden_size": {hidden}, "num_attention_heads": {heads}, "intermediate_size": {inner}, "num_hidden_layers": 3,
                    "image_size": {side}, "patch_size": 8, "norm_type": "{norm}", "use_qk_norm": {normed}}}}}"#,
                normed = norm == "rms_norm"
            );
            sees::<InternVlVisionModel>(&config, [tiles * side / 8, side / 8], &init);
        }
    }

    let behind = TextFilling { token: 5, tokens: 512, before: false };
    for (layers, heads, lengths) in [(3, 4, [512, 512]), (2, 2, [400, 100])] {
        let more = format!(
            r#", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": {layers},
               "num_attention_heads": {heads}, "num_key_value_heads": 2, "head_dim": 24, "vocab_size": 100"#
        );
        let encoder = read::<DecoderTextEncoder>("qwen3", &more);
        let model = DecoderTextEncoder::new(&encoder.config, &init);
        let texts = lengths.map(|length| vec![3; length]);
        let measured = peak(|| model.forward(&texts).unwrap());
        let said = |threads| encoder.model().activation_bytes(2, lengths[0], threads);
        check(&format!("text encoder of {layers} layers"), measured, said);
        let states = encoder.changed(|config| *config = config.clone().with_states(&[1]).unwrap());
        let model = DecoderTextEncoder::new(&states.config, &init);
        let measured = peak(|| model.forward_filled(&texts, behind).unwrap());
        let said = |threads| states.model().activation_bytes(2, 512, threads);
        check(&format!("text encoder of 1 of {layers} layers"), measured, said);
    }
    for (inner, lengths) in [(160, [512, 400]), (320, [300, 9])] {
        let more = format!(
            r#", "hidden_size": 96, "intermediate_size": {inner}, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "vocab_size": 100, "vision_config": {{}}"#
        );
        let encoder = read::<DecoderTextEncoder>("qwen2_5_vl", &more);
        let model = DecoderTextEncoder::new(&encoder.config, &init);
        let texts = lengths.map(|length| vec![3; length]);
        let measured = peak(|| model.forward(&texts).unwrap());
        let said = |threads| encoder.model().activation_bytes(2, lengths[0], threads);
        check(&format!("text encoder of Qwen2.5-VL, inner layers of {inner}"), measured, said);
    }
    for (inner, states) in [(160, &[1, 2, 4][..]), (64, &[1, 2, 3, 4, 5])] {
        let more = format!(
            r#", "hidden_size": 128, "intermediate_size": {inner}, "num_hidden_layers": 6, "num_attention_heads": 2,
               "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 100"#
        );
        let encoder = read::<DecoderTextEncoder>("qwen3", &more);
        let encoder =
            encoder.changed(|config| *config = config.clone().with_states(states).unwrap());
        let model = DecoderTextEncoder::new(&encoder.config, &init);
        let measured = peak(|| model.forward_filled(&[vec![3; 400], vec![3; 9]], behind).unwrap());
        let said = |threads| encoder.model().activation_bytes(2, 512, threads);
        check(&format!("text encoder of {} states", states.len()), measured, said);
    }

    for (channels, heads, linear) in
        [("32, 64", 4, true), ("64, 64", 1, false), ("16, 96", 8, false)]
    {
        let more = format!(
            r#", "block_out_channels": [{channels}], "attention_head_dim": {heads}, "use_linear_projection": {linear},
               "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "cross_attention_dim": 32,
               "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "norm_num_groups": 8"#
        );
        let unet = read::<Unet2dConditionModel>("UNet2DConditionModel", &more);
        let model = Unet2dConditionModel::new(&unet.config, &init);
        let size = PictureSize { batch: 2, rows: 48, columns: 32 };
        let (latents, context) = (zeros([2, 48, 32, 4]), zeros([2, 77, 32]));
        let measured = peak(|| model.forward(latents.clone(), 7.0, None, context.clone(), None));
        let said = |threads| unet.model().activation_bytes(size, 77, threads);
        check(&format!("denoiser of {channels}"), measured, said);
    }

    for (channels, band_bytes) in
        [("32, 64, 64", 64 << 10), ("16, 16, 32", 100_000), ("32, 32, 32", usize::MAX)]
    {
        let more = format!(
            r#", "block_out_channels": [{channels}], "layers_per_block": 2, "norm_num_groups": 8,
               "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]"#
        );
        let vae = read::<AutoencoderKl>("AutoencoderKL", &more);
        let model = AutoencoderKl::new(&vae.config, &init).with_band_bytes(band_bytes);
        let size = PictureSize { batch: 1, rows: 40, columns: 48 };
        let latents = zeros([1, 40, 48, 4]);
        let measured = peak(|| model.decode(latents.clone(), drop));
        let said = |threads| model.activation_bytes(size, threads);
        check(&format!("decoder of {channels} in bands of {band_bytes}"), measured, said);
    }

    for (channels, band_bytes) in
        [("32, 64, 64", 64 << 10), ("16, 16, 32", 100_000), ("32, 32, 32", usize::MAX)]
    {
        let more = format!(
            r#", "block_out_channels": [{channels}], "layers_per_block": 2, "norm_num_groups": 8,
               "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
               "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]"#
        );
        let vae = read::<AutoencoderKlEncoder>("AutoencoderKL", &more);
        let model = AutoencoderKlEncoder::new(&vae.config, &init).with_band_bytes(band_bytes);
        let size = PictureSize { batch: 1, rows: 40, columns: 48 };
        let picture = zeros([1, 160, 192, 3]);
        let measured = peak(|| model.encode(picture.clone()));
        let said = |threads| model.activation_bytes(size, threads);
        check(&format!("encoder of {channels} in bands of {band_bytes}"), measured, said);
    }

    for (base, band_bytes) in [(16, 64 << 10), (8, 100_000), (32, 64 << 10)] {
        let more = format!(
            r#", "base_dim": {base}, "dim_mult": [1, 2, 4], "temperal_downsample": [false, true]"#
        );
        let size = PictureSize { batch: 1, rows: 40, columns: 48 };
        let vae = read::<AutoencoderKl>("AutoencoderKLQwenImage", &more);
        let model = AutoencoderKl::new(&vae.config, &init).with_band_bytes(band_bytes);
        let latents = zeros([1, 40, 48, 16]);
        let measured = peak(|| model.decode(latents.clone(), drop));
        let said = |threads| model.activation_bytes(size, threads);
        let of = format!("of Qwen-Image, {base} channels in bands of {band_bytes}");
        check(&format!("decoder {of}"), measured, said);
        let vae = read::<AutoencoderKlEncoder>("AutoencoderKLQwenImage", &more);
        let model = AutoencoderKlEncoder::new(&vae.config, &init).with_band_bytes(band_bytes);
        let picture = zeros([1, 160, 192, 3]);
        let measured = peak(|| model.encode(picture.clone()));
        let said = |threads| model.activation_bytes(size, threads);
        check(&format!("encoder {of}"), measured, said);
    }
}
