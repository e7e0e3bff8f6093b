//! What is Stable Diffusion 3's own.

use super::*;

const NAME: &str = "pipeline-sd3";

#[test]
fn pictures_of_stable_diffusion_3_are_those_of_diffusers() {
    assert_recorded(NAME);
}

#[test]
fn what_stable_diffusion_3_cannot_do_is_named() {
    for (file, field, value, named) in [
        ("transformer/config.json", "joint_attention_dim", 8.into(), "context_embedder.weight"),
        ("transformer/config.json", "pos_embed_max_size", 13.into(), "pos_embed.pos_embed"),
        ("transformer/config.json", "qk_norm", "layer_norm".into(), "`qk_norm`"),
        ("transformer/config.json", "dual_attention_layers", Value::Null, "attn2"),
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            "PNDMScheduler".into(),
            "PNDMScheduler is for",
        ),
        (
            "model_index.json",
            "_class_name",
            "FluxPipeline".into(),
            "`text_encoder` is \"CLIPTextModelWithProjection\"",
        ),
        (
            "model_index.json",
            "text_encoder_3",
            serde_json::json!([null, null]),
            "`text_encoder_3` is \"\"",
        ),
    ] {
        let error = refusal(NAME, file, field, value);
        assert!(error.contains(named), "{field}: {error}");
    }
    let file = SingleFile::open(&fixture("pipeline").join("single.safetensors")).unwrap();
    let error = ImageModel::open_file(&file, &fixture(NAME)).unwrap_err().to_string();
    assert!(error.contains("its base is a StableDiffusion3Pipeline"), "{error}");
}

#[test]
fn a_picture_of_stable_diffusion_3_is_no_larger_than_its_table_of_places() {
    let model = ImageModel::open(&fixture(NAME), None).unwrap();
    let usual = ImageRequest::new("");
    assert_eq!((model.steps(&usual), model.guidance_scale(&usual)), (28, 7.0));
    assert_eq!(model.size(&usual).unwrap(), [16; 2]);
    let of = |width| model.size(&ImageRequest { width: Some(width), ..ImageRequest::new("") });
    assert_eq!(of(48).unwrap(), [48, 16]);
    let error = of(52).unwrap_err().to_string();
    assert!(error.contains("a multiple of 4, up to 48"), "{error}");
}

#[test]
fn stable_diffusion_3_gives_the_same_bits_in_any_budget() {
    let folder = copied(NAME);
    assert_same_bits_in_little(
        folder.path(),
        &begun(folder.path()),
        &["text_encoder", "text_encoder_2", "text_encoder_3", "vae_encoder", "transformer", "vae"],
    );
}
