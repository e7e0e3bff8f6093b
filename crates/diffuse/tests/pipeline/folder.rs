//! What is found in a pipeline's folder, and what is refused.

use std::fs;
use std::path::Path;

use outsize_diffuse::{PipelineFiles, PipelineKind};
use tempfile::TempDir;

const INDEX: &str = r#"{
    "_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.6.0",
    "feature_extractor": ["transformers", "CLIPImageProcessor"],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"], "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"]
}"#;

/// A pipeline with empty files of these names beside its configurations.
fn folder(index: &str, files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let small = ["text_encoder/config.json", "unet/config.json", "vae/config.json"];
    let small = small.iter().chain(&["scheduler/scheduler_config.json"]);
    for file in small.chain(files) {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    fs::write(folder.path().join("model_index.json"), index).unwrap();
    folder
}

fn message(folder: &Path, variant: Option<&str>) -> String {
    PipelineFiles::open(folder, variant).unwrap_err().to_string()
}

#[test]
fn safetensors_come_before_pickled_files_and_plain_ones_before_halves() {
    let folder = folder(
        INDEX,
        &[
            "text_encoder/model.fp16.safetensors",
            "text_encoder/model.safetensors",
            "text_encoder/pytorch_model.bin",
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "unet/diffusion_pytorch_model.bin",
            "vae/diffusion_pytorch_model.fp16.bin",
        ],
    );
    let found = PipelineFiles::open(folder.path(), None).unwrap();
    let weights = |found: &PipelineFiles| {
        found.parts.clone().into_iter().map(|part| part.weights).collect::<Vec<_>>()
    };
    assert_eq!(
        weights(&found),
        [
            "text_encoder/model.safetensors",
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "vae/diffusion_pytorch_model.fp16.bin",
        ]
    );
    assert!(found.has_safety_checker);
    let found = PipelineFiles::open(folder.path(), Some("fp16")).unwrap();
    assert_eq!(weights(&found)[0], "text_encoder/model.fp16.safetensors");
    for variant in ["ema", "../unet/x", "fp16.safetensors/../model"] {
        let error = message(folder.path(), Some(variant));
        assert!(error.contains(&format!("text_encoder/model.{variant}.safetensors")), "{error}");
    }
}

#[test]
fn shards_are_found_by_their_index() {
    let folder = folder(
        &INDEX.replace(r#"["stable_diffusion", "StableDiffusionSafetyChecker"]"#, "[null, null]"),
        &[
            "text_encoder/model.safetensors.index.json",
            "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
            "vae/diffusion_pytorch_model.bin.index.json",
        ],
    );
    let found = PipelineFiles::open(folder.path(), None).unwrap();
    assert!(found.parts.iter().all(|part| part.is_sharded()));
    let unet = "unet/diffusion_pytorch_model.safetensors.index.fp16.json";
    assert_eq!(found.parts[1].weights, unet);
    assert!(found.names().any(|name| name == unet));
    assert!(!found.has_safety_checker);
}

#[test]
fn each_kind_has_its_parts_and_tokenizers() {
    let xl = INDEX.replace("StableDiffusionPipeline", "StableDiffusionXLInpaintPipeline").replace(
        r#""tokenizer": ["#,
        r#""tokenizer_2": ["transformers", "CLIPTokenizer"],
            "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"], "tokenizer": ["#,
    );
    let flux = INDEX
        .replace("StableDiffusionPipeline", "FluxPipeline")
        .replace(
            r#""tokenizer": ["#,
            r#""tokenizer_2": ["transformers", "T5TokenizerFast"],
            "text_encoder_2": ["transformers", "T5EncoderModel"], "tokenizer": ["#,
        )
        .replace(
            r#""unet": ["diffusers", "UNet2DConditionModel"]"#,
            r#""transformer": ["diffusers", "FluxTransformer2DModel"]"#,
        );
    for (index, kind, denoiser) in
        [(xl, PipelineKind::StableDiffusionXl, "unet"), (flux, PipelineKind::Flux, "transformer")]
    {
        let weights = format!("{denoiser}/diffusion_pytorch_model.safetensors.index.json");
        let folder = folder(
            &index,
            &[
                "text_encoder/model.safetensors",
                "text_encoder_2/config.json",
                "text_encoder_2/model.safetensors.index.json",
                "transformer/config.json",
                &weights,
                "vae/diffusion_pytorch_model.safetensors",
                "tokenizer/vocab.json",
                "tokenizer_2/tokenizer.json",
                "tokenizer_2/spiece.model",
            ],
        );
        let found = PipelineFiles::open(folder.path(), None).unwrap();
        assert_eq!(found.kind, kind);
        assert_eq!(found.zeros_for_empty, kind == PipelineKind::StableDiffusionXl);
        let folders: Vec<_> = found.parts.iter().map(|part| part.config.as_str()).collect();
        let denoiser = format!("{denoiser}/config.json");
        let wanted = [
            "text_encoder/config.json",
            "text_encoder_2/config.json",
            &denoiser,
            "vae/config.json",
        ];
        assert_eq!(folders, wanted);
        assert_eq!(found.parts[2].weights, weights);
        assert_eq!(found.tokenizers, ["tokenizer/vocab.json", "tokenizer_2/tokenizer.json"]);
    }
}

#[test]
fn z_image_has_a_tokenizer_of_one_file_and_a_template() {
    let index = INDEX
        .replace("StableDiffusionPipeline", "ZImageInpaintPipeline")
        .replace("CLIPTextModel", "Qwen3Model")
        .replace("CLIPTokenizer", "Qwen2Tokenizer")
        .replace(
            r#""unet": ["diffusers", "UNet2DConditionModel"]"#,
            r#""transformer": ["diffusers", "ZImageTransformer2DModel"]"#,
        );
    let files = [
        "text_encoder/model.safetensors.index.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors.index.json",
        "vae/diffusion_pytorch_model.safetensors",
        "tokenizer/vocab.json",
        "tokenizer/tokenizer.json",
        "tokenizer/chat_template.jinja",
    ];
    let without = folder(&index, &files[..5]);
    assert!(message(without.path(), None).contains("has no tokenizer/tokenizer.json"));
    let found = PipelineFiles::open(folder(&index, &files).path(), None).unwrap();
    assert_eq!(found.kind, PipelineKind::ZImage);
    let tokenizer = ["tokenizer.json", "chat_template.jinja", "vocab.json"];
    assert_eq!(found.tokenizers, tokenizer.map(|name| format!("tokenizer/{name}")));
}

#[test]
fn flux_2_says_whether_it_was_distilled() {
    let index = INDEX
        .replace("StableDiffusionPipeline", "Flux2KleinPipeline")
        .replace("CLIPTextModel", "Qwen3ForCausalLM")
        .replace("CLIPTokenizer", "Qwen2TokenizerFast")
        .replace("AutoencoderKL", "AutoencoderKLFlux2")
        .replace(
            r#""unet": ["diffusers", "UNet2DConditionModel"]"#,
            r#""transformer": ["diffusers", "Flux2Transformer2DModel"]"#,
        );
    let files = [
        "text_encoder/model.safetensors.index.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
        "tokenizer/tokenizer.json",
    ];
    let found = |index: &str| PipelineFiles::open(folder(index, &files).path(), None).unwrap();
    assert_eq!(found(&index).kind, PipelineKind::Flux2Klein);
    let [plain, distilled] =
        ["", r#""is_distilled": true,"#].map(|more| index.replacen('{', &format!("{{{more}"), 1));
    assert_eq!([found(&plain).is_distilled, found(&distilled).is_distilled], [false, true]);
    let other = index.replace("AutoencoderKLFlux2", "AutoencoderKL");
    let error = message(folder(&other, &files).path(), None);
    assert!(error.contains("only \"AutoencoderKLFlux2\" is built in"), "{error}");
}

#[test]
fn what_is_missing_or_not_built_in_is_named() {
    let empty = tempfile::tempdir().unwrap();
    assert!(!PipelineFiles::is_at(empty.path()));
    assert!(message(empty.path(), None).contains("model_index.json"));
    let all = ["text_encoder/model.safetensors", "unet/diffusion_pytorch_model.safetensors"];
    let without = folder(INDEX, &all);
    assert!(message(without.path(), None).contains("vae/diffusion_pytorch_model.safetensors"));
    fs::remove_file(without.path().join("unet/config.json")).unwrap();
    assert!(message(without.path(), None).contains("unet/config.json"));
    for (from, to, named) in [
        (
            "StableDiffusionPipeline",
            "StableCascadeDecoderPipeline",
            "`_class_name` is \"StableCascadeDecoderPipeline\"",
        ),
        ("StableDiffusionPipeline", "StableDiffusionXLPipeline", "`text_encoder_2` is \"\""),
        ("CLIPTextModel", "T5EncoderModel", "`text_encoder` is \"T5EncoderModel\""),
        ("AutoencoderKL", "AsymmetricAutoencoderKL", "`vae` is"),
        ("[\"transformers\", \"CLIPTokenizer\"]", "null", "`tokenizer` is \"\""),
        ("{", "[", "model_index.json is not a JSON object"),
    ] {
        let error = message(folder(&INDEX.replace(from, to), &all).path(), None);
        assert!(error.contains(named), "{error}");
    }
}
