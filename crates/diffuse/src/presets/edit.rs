//! What a Qwen-Image that changes pictures has otherwise than one that does not.

use serde_json::{Value, json};

use super::configs::{changed, qwen_image_tiny};

/// What stands around a picture in a text, and for it.
pub(super) const TOKENS: [&str; 3] = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"];

/// Tokens of the published model.
const VOCABULARY: usize = 152_064;

/// The changes of Qwen-Image-Edit 2511.
pub(super) fn changes() -> Vec<Value> {
    let vision = json!({
        "depth": 32, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu", "hidden_size": 1280,
        "in_chans": 3, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
        "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
        "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 112,
    });
    vec![seeing(&vision, VOCABULARY), json!({ "zero_cond_t": true }), json!({})]
}

pub(super) fn tiny_changes() -> Vec<Value> {
    let tiny = qwen_image_tiny();
    let tokens = tiny[0]["vocab_size"].as_u64().unwrap_or_default() as usize;
    let vision = json!({
        "depth": 3, "fullatt_block_indexes": [1], "hidden_size": 64, "in_chans": 3,
        "intermediate_size": 128, "num_heads": 4, "out_hidden_size": tiny[0]["hidden_size"],
        "patch_size": 14,
    });
    let rope = json!({ "rope_scaling": { "mrope_section": [4, 6, 6], "rope_type": "default" } });
    let [text, transformer] = [seeing(&vision, tokens), json!({ "zero_cond_t": true })];
    changed(changed(tiny, [text, transformer]), [rope])
}

/// A text encoder that sees pictures by such an encoder; its last tokens are [`TOKENS`].
fn seeing(vision: &Value, tokens: usize) -> Value {
    json!({
        "vision_start_token_id": tokens - 3, "image_token_id": tokens - 2,
        "vision_end_token_id": tokens - 1, "vision_config": vision,
    })
}

/// The file that says how pictures are seen.
pub(super) fn processor() -> (String, String) {
    let text = json!({
        "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711], "max_pixels": 12_845_056,
        "merge_size": 2, "min_pixels": 3136, "patch_size": 14, "resample": 3,
        "rescale_factor": 1.0 / 255.0, "temporal_patch_size": 2,
    });
    ("processor/preprocessor_config.json".to_owned(), format!("{text:#}\n"))
}
