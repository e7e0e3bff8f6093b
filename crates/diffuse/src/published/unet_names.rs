//! What the software that Stable Diffusion was published for calls the modules of its denoiser.

use outsize_models::arch::Unet2dConditionConfig;

/// The sizes that the names depend on.
#[derive(Debug)]
pub(crate) struct UnetNames {
    /// Residual blocks of a level on the way down; on the way up there is one more.
    layers: usize,
    /// Whether each level has transformers on the way up, from the lowest level on.
    up_attention: Vec<bool>,
}

impl UnetNames {
    pub fn new(config: &Unet2dConditionConfig) -> Self {
        Self { layers: config.layers, up_attention: config.up_attention.clone() }
    }

    /// The published name of the module that diffusers calls `module`.
    pub fn published(&self, module: &str) -> Option<String> {
        let parts: Vec<&str> = module.split('.').collect();
        let number = |text: &str| text.parse::<usize>().ok();
        let of_level =
            |level: &str, more: &str| Some(number(level)? * (self.layers + 1) + number(more)?);
        Some(match &parts[..] {
            ["conv_in"] => "input_blocks.0.0".to_owned(),
            ["conv_norm_out"] => "out.0".to_owned(),
            ["conv_out"] => "out.2".to_owned(),
            ["time_embedding", "linear_1"] => "time_embed.0".to_owned(),
            ["time_embedding", "linear_2"] => "time_embed.2".to_owned(),
            ["add_embedding", "linear_1"] => "label_emb.0.0".to_owned(),
            ["add_embedding", "linear_2"] => "label_emb.0.2".to_owned(),
            ["down_blocks", level, "resnets", index, layer] => {
                format!("input_blocks.{}.0.{}", of_level(level, index)? + 1, of_resnet(layer)?)
            }
            ["down_blocks", level, "attentions", index, rest @ ..] => {
                format!("input_blocks.{}.1.{}", of_level(level, index)? + 1, rest.join("."))
            }
            ["down_blocks", level, "downsamplers", "0", "conv"] => {
                format!("input_blocks.{}.0.op", (number(level)? + 1) * (self.layers + 1))
            }
            ["mid_block", "resnets", index, layer] => {
                format!("middle_block.{}.{}", 2 * number(index)?, of_resnet(layer)?)
            }
            ["mid_block", "attentions", "0", rest @ ..] => {
                format!("middle_block.1.{}", rest.join("."))
            }
            ["up_blocks", level, "resnets", index, layer] => {
                format!("output_blocks.{}.0.{}", of_level(level, index)?, of_resnet(layer)?)
            }
            ["up_blocks", level, "attentions", index, rest @ ..] => {
                format!("output_blocks.{}.1.{}", of_level(level, index)?, rest.join("."))
            }
            ["up_blocks", level, "upsamplers", "0", "conv"] => {
                let level = number(level)?;
                // It stands behind what else the block has.
                let place = if *self.up_attention.get(level)? { 2 } else { 1 };
                format!("output_blocks.{}.{place}.conv", level * (self.layers + 1) + self.layers)
            }
            _ => return None,
        })
    }
}

fn of_resnet(layer: &str) -> Option<&'static str> {
    Some(match layer {
        "norm1" => "in_layers.0",
        "conv1" => "in_layers.2",
        "time_emb_proj" => "emb_layers.1",
        "norm2" => "out_layers.0",
        "conv2" => "out_layers.3",
        "conv_shortcut" => "skip_connection",
        _ => return None,
    })
}
