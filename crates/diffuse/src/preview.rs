//! Small pictures of latents.

use outsize_picture::Picture;

/// Channels of latents that a preview is made of.
pub(crate) const PREVIEW_CHANNELS: usize = 4;

/// What the four channels of Stable Diffusion's latents add to red, green and blue: Kevin Turner's
/// fit to the decoder of version 1.4 ("Decoding latents to RGB without upscaling",
/// discuss.huggingface.co, 2022), as other software has it. It is not fitted to the model at hand:
/// another decoder's colours may differ.
const LATENT_COLOURS: [[f32; 3]; PREVIEW_CHANNELS] = [
    [0.298, 0.207, 0.208],
    [0.187, 0.286, 0.173],
    [-0.158, 0.189, 0.264],
    [-0.184, -0.271, -0.473],
];

/// A small picture of latents `[rows, columns, 4]`, one pixel for each: a linear approximation of
/// what the decoder would make of them. `None` for latents of another number of channels.
pub fn preview(latents: &[f32], rows: usize, columns: usize) -> Option<Picture> {
    if latents.len() != PREVIEW_CHANNELS * rows * columns {
        return None;
    }
    let values = latents.chunks_exact(PREVIEW_CHANNELS).flat_map(|latent| {
        [0, 1, 2].map(|colour| {
            latent.iter().zip(LATENT_COLOURS).map(|(value, share)| value * share[colour]).sum()
        })
    });
    Some(Picture::from_values(columns, rows, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_has_a_pixel_for_each_latent() {
        let latents = [0.0; 24];
        let picture = preview(&latents, 2, 3).unwrap();
        assert_eq!((picture.width, picture.height), (3, 2));
        assert!(picture.rgb.iter().all(|byte| *byte == 128));
        assert_eq!(preview(&latents, 2, 2), None);
    }
}
