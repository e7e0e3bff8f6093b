//! Vision encoders in files of their own.

use super::*;
use outsize_checkpoint::GgufVision;

/// A language model with the tokens of images, in `place`.
fn language_model(place: &Path, architecture: &str, width: u32) -> PathBuf {
    let path = place.join("model.gguf");
    let tokens = texts(&["a", "<image_soft_token>", "[IMG]"]);
    let width_key = format!("{architecture}.embedding_length");
    let more = [("tokenizer.ggml.tokens", tokens), (width_key.as_str(), u32(width))];
    fs::write(&path, model(architecture, &more)).unwrap();
    path
}

/// An encoder of Gemma 3 with features of so many values.
fn encoder(width: u32) -> Vec<(&'static str, Value)> {
    let number = |value| u32(value);
    vec![
        ("general.architecture", text("clip")),
        ("general.type", text("mmproj")),
        ("clip.projector_type", text("gemma3")),
        ("clip.vision.projection_dim", number(width)),
        ("clip.vision.image_size", number(24)),
        ("clip.vision.patch_size", number(4)),
        ("clip.vision.projector.scale_factor", number(2)),
        ("clip.vision.embedding_length", number(8)),
        ("clip.vision.feed_forward_length", number(10)),
        ("clip.vision.block_count", number(1)),
        ("clip.vision.attention.head_count", number(2)),
        ("clip.vision.attention.layer_norm_epsilon", f32(1e-6)),
        ("clip.vision.image_mean", array(&[f32(0.5), f32(0.5), f32(0.5)])),
    ]
}

#[test]
fn an_encoder_and_its_model_become_one_configuration() {
    let place = tempfile::tempdir().unwrap();
    let model = language_model(place.path(), "gemma3", 32);
    assert_eq!(GgufVision::beside(&model).unwrap(), None);
    let path = place.path().join("a.MMPROJ-F16.gguf");
    fs::write(&path, file(&encoder(32), &[], 0)).unwrap();
    let found = GgufVision::beside(&model).unwrap().unwrap();
    assert_eq!(found, GgufVision::open(&model, &path).unwrap());
    let config: Json = serde_json::from_str(&found.config).unwrap();
    assert_eq!(
        ["model_type", "mm_tokens_per_image", "image_token_index"].map(|name| &config[name]),
        [&json!("gemma3"), &json!(9), &json!(1)]
    );
    assert_eq!(config["text_config"]["hidden_size"], 32);
    assert_eq!(config["vision_config"]["rms_norm_add_unit_offset"], false);
    let processor: Json = serde_json::from_str(&found.processor).unwrap();
    assert_eq!(processor, json!({ "image_mean": [0.5, 0.5, 0.5] }));

    // In a folder beside it; and a second one, of another model and then of this one.
    let within = place.path().join("Q4_K_M");
    fs::create_dir(&within).unwrap();
    let inner = within.join("model.gguf");
    fs::copy(&model, &inner).unwrap();
    assert_eq!(GgufVision::beside(&inner).unwrap().unwrap().path, path);
    let other = place.path().join("mmproj-other.gguf");
    fs::write(&other, file(&encoder(16), &[], 0)).unwrap();
    assert_eq!(GgufVision::beside(&model).unwrap().unwrap().path, path);
    fs::copy(&path, &other).unwrap();
    let said = GgufVision::beside(&model).unwrap_err().to_string();
    assert!(said.contains("a.MMPROJ-F16.gguf and mmproj-other.gguf beside it are both"), "{said}");
}

#[test]
fn tensors_have_the_names_of_transformers() {
    let tensors: &[Tensor<'_>] = &[
        // As older converters called them: the outputs are made by what is up.
        ("v.blk.0.ffn_down.weight", &[8, 10], 0, 0),
        ("v.blk.0.ffn_up.weight", &[10, 8], 0, 320),
        ("mm.input_projection.weight", &[32, 8], 0, 640),
        ("v.blk.0.attn_q.bias", &[8], 0, 1664),
        ("v.unknown", &[8], 0, 1696),
    ];
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("mmproj.gguf");
    fs::write(&path, file(&encoder(32), tensors, 1728)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let shape = |name: &str| checkpoint.get(name).map(|tensor| tensor.shape.clone());
    let layer = "vision_tower.encoder.layers.0";
    assert_eq!(shape(&format!("{layer}.mlp.fc1.weight")), Some(vec![10, 8]));
    assert_eq!(shape(&format!("{layer}.mlp.fc2.weight")), Some(vec![8, 10]));
    assert_eq!(shape(&format!("{layer}.self_attn.q_proj.bias")), Some(vec![8]));
    let projection = "multi_modal_projector.mm_input_projection_weight";
    assert_eq!(shape(projection), Some(vec![8, 32]));
    assert_eq!(shape("v.unknown"), Some(vec![8]));
    // By itself it is no model.
    let said = read_object(&path.join("config.json")).unwrap_err().to_string();
    assert!(said.contains("mmproj.gguf: ") && said.contains("name the file of"), "{said}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("mmproj.gguf");
    let refused = |architecture: &str, changed: &[(&'static str, Option<Value>)]| {
        let model = language_model(place.path(), architecture, 32);
        let mut values = encoder(32);
        for (key, value) in changed {
            values.retain(|(known, _)| known != key);
            values.extend(value.clone().map(|value| (*key, value)));
        }
        fs::write(&path, file(&values, &[], 0)).unwrap();
        let said = GgufVision::open(&model, &path).unwrap_err().to_string();
        assert!(!said.chars().any(char::is_control), "{said}");
        said
    };
    let kind = "clip.projector_type";
    let said = refused("llama", &[]);
    assert!(said.contains("mmproj.gguf: ") && said.contains("of gemma3, and the one"), "{said}");
    let said = refused("gemma3", &[(kind, Some(text("ldp")))]);
    assert!(said.contains("\"ldp\" is not built in") && said.contains("qwen3vl_merger"), "{said}");
    let said = refused("gemma3", &[(kind, None)]);
    assert!(said.contains(kind), "{said}");
    let said = refused("gemma3", &[("clip.vision.projection_dim", Some(u32(16)))]);
    assert!(said.contains("have 16 values, and the language model takes 32"), "{said}");
    let said = refused("gemma3", &[("clip.vision.block_count", None)]);
    assert!(said.contains("clip.vision.block_count"), "{said}");
    let said = refused("gemma3", &[("general.architecture", Some(text("llama")))]);
    assert!(said.contains("\"clip\""), "{said}");
    // Its tokenizer has no such token.
    let said = refused("qwen2vl", &[(kind, Some(text("qwen2vl_merger")))]);
    assert!(said.contains("model.gguf: ") && said.contains("no <|image_pad|>"), "{said}");
    let said = refused("mistral3", &[(kind, Some(text("pixtral")))]);
    assert!(said.contains("mm.patch_merger.weight"), "{said}");
}

proptest! {
    #[test]
    fn odd_metadata_of_encoders_becomes_a_configuration_or_one_error(
        (kind, architecture) in prop::sample::select(vec![
            ("gemma3", "gemma3"), ("gemma4v", "gemma4"), ("pixtral", "llama"),
            ("qwen2vl_merger", "qwen2vl"), ("qwen2.5vl_merger", "qwen2vl"), ("qwen3vl_merger", "qwen3vl"),
        ]),
        values in prop::collection::hash_map(
            prop::sample::select(vec![
                "attention.head_count", "attention.layer_norm_epsilon", "block_count", "embedding_length",
                "feed_forward_length", "image_max_pixels", "image_mean", "image_min_pixels", "image_size",
                "image_std", "n_wa_pattern", "patch_size", "preproc_image_size", "projection_dim",
                "projector.scale_factor", "spatial_merge_size", "window_size",
            ]),
            configurations::odd_value(),
            8..17,
        ),
        sections in configurations::odd_value(),
    ) {
        let place = tempfile::tempdir().unwrap();
        let tokens = ["<image_soft_token>", "<|image|>", "<|image>", "<image|>", "[IMG]", "<|image_pad|>",
            "<|vision_start|>", "<|vision_end|>"];
        let key = format!("{architecture}.rope.dimension_sections");
        let more = [("tokenizer.ggml.tokens", texts(&tokens)), (key.as_str(), sections)];
        let model_path = place.path().join("model.gguf");
        fs::write(&model_path, model(architecture, &more)).unwrap();
        let named = values.into_iter().map(|(end, value)| (format!("clip.vision.{end}"), value));
        let named: Vec<_> = named.collect();
        let mut values = vec![("general.architecture", text("clip")), ("clip.projector_type", text(kind))];
        values.extend(named.iter().map(|(key, value)| (key.as_str(), value.clone())));
        let tensors: &[Tensor<'_>] = &[("mm.patch_merger.weight", &[2], 0, 0), ("v.deepstack.7.x", &[2], 0, 32)];
        let path = place.path().join("mmproj.gguf");
        fs::write(&path, file(&values, tensors, 64)).unwrap();
        match GgufVision::open(&model_path, &path) {
            Ok(found) => {
                prop_assert!(serde_json::from_str::<Map<String, Json>>(&found.config).is_ok());
                prop_assert!(serde_json::from_str::<Map<String, Json>>(&found.processor).is_ok());
            }
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.contains(".gguf: ") && !said.chars().any(char::is_control), "{said}");
            }
        }
    }
}
