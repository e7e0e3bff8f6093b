//! What is Qwen-Image's own.

use super::*;
use outsize_checkpoint::{FileWriter, TensorInfo, TensorSpec};

#[test]
fn pictures_of_qwen_image_are_those_of_diffusers() {
    assert_recorded("pipeline-qwen-image");
}

#[test]
fn what_qwen_image_cannot_do_is_named() {
    for (file, field, value, named) in [
        ("transformer/config.json", "joint_attention_dim", 8.into(), "txt_norm.weight"),
        ("transformer/config.json", "in_channels", 8.into(), "img_in.weight"),
        ("transformer/config.json", "guidance_embeds", true.into(), "`guidance_embeds`"),
        ("transformer/config.json", "zero_cond_t", "yes".into(), "`zero_cond_t`"),
        ("text_encoder/config.json", "model_type", "qwen3".into(), "`text_config`"),
        ("vae/config.json", "z_dim", 5.into(), "`latents_mean`"),
        ("vae/config.json", "_class_name", "AutoencoderKL".into(), "`latents_mean`"),
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            "PNDMScheduler".into(),
            "PNDMScheduler is for",
        ),
        (
            "model_index.json",
            "_class_name",
            "QwenImageLayeredPipeline".into(),
            "\"QwenImagePipeline\"",
        ),
        (
            "model_index.json",
            "_class_name",
            "QwenImageEditPipeline".into(),
            "has no processor/preprocessor_config.json",
        ),
        (
            "model_index.json",
            "_class_name",
            "ZImagePipeline".into(),
            "`text_encoder` is \"Qwen2_5_VLForConditionalGeneration\"",
        ),
        (
            "tokenizer/tokenizer_config.json",
            "added_tokens_decoder",
            serde_json::json!({"300": {"content": "<|im_start|>"}}),
            "the id 300",
        ),
        (
            "tokenizer/tokenizer_config.json",
            "added_tokens_decoder",
            Value::Null,
            "`added_tokens_decoder` is missing",
        ),
    ] {
        let error = refusal("pipeline-qwen-image", file, field, value);
        assert!(error.contains(named), "{field}: {error}");
    }
    let folder = copied("pipeline-qwen-image");
    fs::remove_file(folder.path().join("tokenizer/merges.txt")).unwrap();
    let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("has no tokenizer/tokenizer.json"), "{error}");
}

#[test]
fn parts_of_other_models_are_not_those_of_qwen_image() {
    let folder = copied("pipeline-qwen-image");
    let vae = fixture("pipeline-flux").join("vae");
    fs::remove_dir_all(folder.path().join("vae")).unwrap();
    copy_folder(&vae, &folder.path().join("vae"));
    let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("another autoencoder than AutoencoderKLQwenImage"), "{error}");
    let file = SingleFile::open(&fixture("pipeline-flux").join("wide.gguf")).unwrap();
    let base = fixture("pipeline-qwen-image");
    let error = ImageModel::open_file(&file, &base).unwrap_err().to_string();
    assert!(error.contains("its base is a QwenImagePipeline, which it is not"), "{error}");
}

#[test]
fn a_transformer_of_qwen_image_in_one_file_makes_the_same_pictures() {
    let folder = copied("pipeline-qwen-image");
    let (weights, prefixed) = (
        folder.path().join("transformer/diffusion_pytorch_model.safetensors"),
        folder.path().join("prefixed.safetensors"),
    );
    let request = ImageRequest {
        steps: Some(2),
        width: Some(16),
        height: Some(16),
        ..ImageRequest::new("a cat")
    };
    let pictures = open(folder.path(), "cpu=1GB").generate(&request).unwrap();
    let whole = Checkpoint::open(&weights).unwrap();
    // As other software saves it.
    let name = |tensor: &TensorInfo| format!("model.diffusion_model.{}", tensor.name);
    let specs = whole.tensors().iter();
    let specs = specs.map(|tensor| TensorSpec::new(name(tensor), tensor.dtype, &*tensor.shape));
    let mut writer = FileWriter::create(&prefixed, specs.collect()).unwrap();
    for tensor in whole.tensors() {
        writer.write(&name(tensor), &whole.read(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let alone = folder.path().join("alone.safetensors");
    fs::rename(&weights, &alone).unwrap();
    for file in [alone, prefixed] {
        let file = SingleFile::open(&file).unwrap();
        let pipeline = ImagePipeline::open_file(&file, folder.path(), settings("cpu=1GB")).unwrap();
        assert_eq!(pipeline.generate(&request).unwrap(), pictures);
        let error = file.usual_base().unwrap_err().to_string();
        assert!(error.contains("Qwen/Qwen-Image"), "{error}");
        assert!(ImageModel::open_file(&file, &fixture("pipeline-flux")).is_err());
    }
}

#[test]
fn qwen_image_is_guided_by_a_negative_prompt() {
    let model = ImageModel::open(&fixture("pipeline-qwen-image"), None).unwrap();
    let usual = ImageRequest::new("");
    assert_eq!((model.steps(&usual), model.guidance_scale(&usual)), (50, 4.0));
    assert!(!model.looks_at_negative_prompts(&usual));
    let negative = ImageRequest { negative_prompt: " ".to_owned(), ..usual };
    assert!(model.looks_at_negative_prompts(&negative));
    let unguided = ImageRequest { guidance_scale: Some(1.0), ..negative };
    assert!(!model.looks_at_negative_prompts(&unguided));
}

#[test]
fn qwen_image_hears_a_prompt_as_far_as_diffusers_does() {
    let pipeline = open(&fixture("pipeline-qwen-image"), "cpu=1GB");
    let made = |prompt: String| {
        let mut found = None;
        let request = ImageRequest {
            steps: Some(2),
            width: Some(16),
            height: Some(16),
            ..ImageRequest::new(prompt)
        };
        let made = pipeline.generate_watched(&request, |progress| {
            if let ImageProgress::Cut { text } = progress {
                found = Some(text.to_owned());
            }
        });
        (made.unwrap(), found)
    };
    // Bytes are tokens, and the template writes some.
    assert_eq!(made("x".repeat(200)).1, None);
    let (long, rest) = made("x".repeat(600));
    let rest = rest.unwrap();
    assert!(rest.len() > 54 && rest.bytes().all(|byte| byte == b'x'), "{rest}");
    assert_eq!(made("x".repeat(700)).0, long);
}

#[test]
fn qwen_image_gives_the_same_bits_in_any_budget() {
    let folder = copied("pipeline-qwen-image");
    assert_same_bits_in_little(
        folder.path(),
        &begun(folder.path()),
        &["text_encoder", "vae_encoder", "transformer", "vae"],
    );
}
