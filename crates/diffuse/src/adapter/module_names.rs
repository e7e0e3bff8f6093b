//! What adapters call the modules of a part: as diffusers does, as the software that models were
//! published for, and both with all dots turned into `_`.

use crate::pipeline_part::PipelinePart;
use crate::published::{LAST_NORM, Rows, UnetNames, flux_name, z_image_name};

/// What the modules of a part are called.
#[derive(Debug)]
pub(crate) enum ModuleNames {
    /// Those that diffusers or transformers has, and no others.
    Plain,
    /// Those of CLIP's text encoder.
    Clip {
        /// Whether the projection is stored the other way round.
        projection_in_out: bool,
    },
    Unet(UnetNames),
    /// The transformers of FLUX.1 and FLUX.2.
    Flux {
        /// Whether the last norm's shifts come before its scales.
        shift_first: bool,
    },
    /// Z-Image's transformer.
    ZImage,
}

impl ModuleNames {
    /// Whether a module's weight is stored as `[in, out]`.
    pub fn is_in_out(&self, module: &str) -> bool {
        let Self::Clip { projection_in_out } = self else { return false };
        *projection_in_out && module == "text_projection"
    }

    /// All names that the module of a weight `[out, in, ..]` may have in a file, each with its rows
    /// there.
    pub fn of(&self, part: PipelinePart, module: &str, shape: &[usize]) -> Vec<(String, Rows)> {
        let all = || Rows::all(shape[0]);
        let mut dotted = vec![(module.to_owned(), all())];
        match self {
            Self::Plain => {}
            Self::Clip { .. } => {
                let short = module.strip_prefix("text_model.").unwrap_or(module);
                let former = former_text_module(short);
                dotted.clear();
                for name in [Some(short.to_owned()), former].into_iter().flatten() {
                    dotted.push((format!("text_model.{name}"), all()));
                    dotted.push((name, all()));
                }
            }
            Self::Unet(names) => {
                dotted.extend(names.published(module).map(|name| (name, all())));
            }
            Self::ZImage => {
                // By the size of a token, of which there is one.
                for layer in ["all_x_embedder", "all_final_layer"] {
                    if let Some(rest) = module.strip_prefix(layer) {
                        dotted[0].0 = format!("{layer}.2-1{rest}");
                    }
                }
                let published = z_image_name(&dotted[0].0, shape[0]);
                dotted.extend((published.0 != dotted[0].0).then_some(published));
            }
            Self::Flux { shift_first } => {
                dotted.extend(flux_name(module, shape));
                if *shift_first && module == LAST_NORM {
                    dotted.iter_mut().for_each(|(_, rows)| *rows = rows.clone().halves_turned());
                }
                // Where others have a list of one layer FLUX.2 has the layer.
                if module.ends_with(".to_out") {
                    dotted.push((format!("{module}.0"), all()));
                }
            }
        }
        let (prefixes, flat_prefixes) = prefixes(part);
        let mut names = Vec::with_capacity(dotted.len() * 5);
        for (name, rows) in dotted {
            let flat = name.replace('.', "_");
            names.extend(prefixes.iter().map(|prefix| (format!("{prefix}{name}"), rows.clone())));
            names.extend(
                flat_prefixes.iter().map(|prefix| (format!("{prefix}{flat}"), rows.clone())),
            );
        }
        names
    }
}

/// What names of a part's modules begin with, those with dots and those without.
fn prefixes(part: PipelinePart) -> (&'static [&'static str], &'static [&'static str]) {
    match part {
        PipelinePart::TextEncoder => (&["text_encoder."], &["lora_te_", "lora_te1_"]),
        PipelinePart::TextEncoder2 => (&["text_encoder_2."], &["lora_te2_", "lora_te3_"]),
        PipelinePart::Unet => (&["unet.", "diffusion_model.", ""], &["lora_unet_"]),
        PipelinePart::Transformer => {
            (&["transformer.", "diffusion_model.", ""], &["lora_unet_", "lora_transformer_"])
        }
        PipelinePart::TextEncoder3
        | PipelinePart::VisionEncoder
        | PipelinePart::VaeEncoder
        | PipelinePart::Vae => (&[], &[]),
    }
}

/// What former diffusers called a layer of CLIP's attention: as those of other attentions.
fn former_text_module(module: &str) -> Option<String> {
    let (attention, layer) = module.rsplit_once('.')?;
    let layer = match layer {
        "q_proj" => "to_q",
        "k_proj" => "to_k",
        "v_proj" => "to_v",
        "out_proj" => "to_out.0",
        _ => return None,
    };
    Some(format!("{attention}.{layer}"))
}
