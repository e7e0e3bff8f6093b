//! What parameters are called in checkpoints, and the shapes in which they are stored.

use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use super::AutoencoderKlConfig;
use crate::component::as_convolution;

/// Names of layers of attention, and those that they have in older files.
const OLD_NAMES: [(&str, &str); 4] = [
    (r"\.to_q\.", ".query."),
    (r"\.to_k\.", ".key."),
    (r"\.to_v\.", ".value."),
    (r"\.to_out\.0\.", ".proj_attn."),
];

/// Names of layers, and those that they have in an autoencoder that was made for films.
const NAMES_OF_FILMS: [(&str, &str); 4] = [
    (r"\.conv_norm_out\.", ".norm_out."),
    (r"\.upsamplers\.0\.conv\.", ".upsamplers.0.resample.1."),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_out\.0\.", ".proj."),
];

/// Frames that a convolution of films sees.
const FRAMES: usize = 3;

/// What parameters are called in a checkpoint with these tensors.
pub(super) fn names(config: &AutoencoderKlConfig, tensors: &[TensorInfo]) -> Names {
    // The expressions are ours, and valid.
    if config.is_of_films() {
        return names_of_films(config).unwrap_or_default();
    }
    let is_old = tensors.iter().any(|tensor| tensor.name.ends_with(".query.weight"));
    let rules = OLD_NAMES.iter().filter(|_| is_old);
    rules
        .fold(Names::default(), |names, (new, old)| names.clone().rename(new, old).unwrap_or(names))
}

fn names_of_films(config: &AutoencoderKlConfig) -> Result<Names, outsize_core::Error> {
    let mut names = Names::default().last_frames();
    // On the way down blocks and what halves the size have numbers of one series.
    let mut number = 0;
    for level in 0..config.channels.len() {
        let resnets = (0..config.layers).map(|layer| (format!(r"resnets\.{layer}"), ""));
        for (own, rest) in resnets.chain([(r"downsamplers\.0\.conv".to_owned(), ".resample.1")]) {
            let pattern = format!(r"^encoder\.down_blocks\.{level}\.{own}\.");
            names = names.rename(&pattern, &format!("encoder.down_blocks.{number}{rest}."))?;
            number += 1;
        }
    }
    for (own, stored) in NAMES_OF_FILMS {
        names = names.rename(own, stored)?;
    }
    for (part, own) in [r"\.to_q\.", r"\.to_k\.", r"\.to_v\."].into_iter().enumerate() {
        names = names.part(own, ".to_qkv.", part, 3)?;
    }
    Ok(names)
}

/// Whether a tensor is of what makes several frames of one, or one of several.
pub(super) fn is_for_frames(config: &AutoencoderKlConfig, tensor: &str) -> bool {
    config.is_of_films() && tensor.contains(".time_conv.")
}

/// The shape in which the parameter of that path is stored.
pub(super) fn shape(config: &AutoencoderKlConfig, path: &str, mut shape: Vec<usize>) -> Vec<usize> {
    let is_film = config.is_of_films() && !path.contains(".attentions.");
    match shape.len() {
        1 if path.ends_with(".gamma") => {
            shape.extend(if is_film { &[1; 3][..] } else { &[1; 2] });
            shape
        }
        2 if is_film => [as_convolution(shape), vec![1]].concat(),
        // Those of attention were matrices before.
        2 if config.is_of_films() || !path.contains(".attentions.") => as_convolution(shape),
        4 if is_film && !path.contains("samplers.") => {
            shape.insert(2, FRAMES);
            shape
        }
        _ => shape,
    }
}
