//! What the software that Stable Diffusion was published for calls the modules of its autoencoder.

/// The published name of the module that diffusers calls `module`, of an autoencoder of so many
/// `levels`.
pub(super) fn published(module: &str, levels: usize) -> Option<String> {
    let parts: Vec<&str> = module.split('.').collect();
    let number = |text: &str| text.parse::<usize>().ok();
    Some(match &parts[..] {
        ["quant_conv" | "post_quant_conv"] => module.to_owned(),
        [half, "conv_norm_out"] => format!("{half}.norm_out"),
        [half, "conv_in" | "conv_out"] => format!("{half}.{}", parts[1]),
        [half, "mid_block", "resnets", index, layer] => {
            format!("{half}.mid.block_{}.{}", number(index)? + 1, of_resnet(layer))
        }
        [half, "mid_block", "attentions", "0", layer @ ..] => {
            let layer = match layer {
                ["group_norm"] => "norm",
                ["to_q"] => "q",
                ["to_k"] => "k",
                ["to_v"] => "v",
                ["to_out", "0"] => "proj_out",
                _ => return None,
            };
            format!("{half}.mid.attn_1.{layer}")
        }
        ["encoder", "down_blocks", level, "resnets", index, layer] => {
            format!("encoder.down.{level}.block.{index}.{}", of_resnet(layer))
        }
        ["encoder", "down_blocks", level, "downsamplers", "0", "conv"] => {
            format!("encoder.down.{level}.downsample.conv")
        }
        // Levels are counted from the picture's own size.
        ["decoder", "up_blocks", level, rest @ ..] => {
            let level = levels.checked_sub(number(level)? + 1)?;
            match rest {
                ["resnets", index, layer] => {
                    format!("decoder.up.{level}.block.{index}.{}", of_resnet(layer))
                }
                ["upsamplers", "0", "conv"] => format!("decoder.up.{level}.upsample.conv"),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn of_resnet(layer: &str) -> &str {
    match layer {
        "conv_shortcut" => "nin_shortcut",
        layer => layer,
    }
}
