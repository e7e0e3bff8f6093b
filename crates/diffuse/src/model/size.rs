//! How large pictures are: those that are made, and those that are gone by.

use super::ImageModel;
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::references::ReferenceSize;
use crate::settings::{ImageRequest, InitialImage};

/// The most rows and columns of a picture.
const MAX_SIDE: usize = 1 << 14;

impl ImageModel {
    /// Pixels of a latent's side.
    pub(crate) fn scale(&self) -> usize {
        1 << (self.vae.config.config.channels.len() - 1)
    }

    /// How pictures to go by are seen.
    ///
    /// # Errors
    /// Some that are not possible, or that are not taken; none where one is needed.
    pub(crate) fn seen_references(
        &self,
        request: &ImageRequest,
    ) -> Result<Vec<ReferenceSize>, Error> {
        let (kind, given) = (self.kind, request.references.len());
        if !kind.takes_references() && given > 0 {
            return Err(Error::References);
        }
        let most = kind.most_references();
        if given > most || (kind.needs_references() && given == 0) {
            let wanted = if most == 1 { "one picture" } else { "one picture or more" };
            return Err(Error::ReferenceCount { given, wanted });
        }
        let unit = self.scale() * self.denoiser.packing();
        let references = request.references.iter();
        references.map(|picture| ReferenceSize::new(kind, picture, unit)).collect()
    }

    /// Width and height of the pictures.
    ///
    /// # Errors
    /// [`Error::Size`]: sides that are not multiples of a latent's, or too long. Pictures that the
    /// model does not take.
    pub fn size(&self, request: &ImageRequest) -> Result<[usize; 2], Error> {
        let scale = self.scale() * self.denoiser.packing();
        let usual = self.denoiser.sample_size().map_or(512, |side| side * self.scale());
        if self.kind.takes_references() && request.image.is_some() {
            return Err(Error::InitialImage);
        }
        // Of a picture to begin with as much as there are whole latents for.
        let usual = match (&request.image, &self.seen_references(request)?[..]) {
            (Some(InitialImage { picture, .. }), _) => {
                [picture.width, picture.height].map(|side| (side / scale).max(1) * scale)
            }
            (None, [.., last]) if self.kind == PipelineKind::QwenImageEditPlus => last.seen,
            (None, [first, ..]) => first.seen,
            (None, []) => [usual; 2],
        };
        let [width, height] =
            [request.width.unwrap_or(usual[0]), request.height.unwrap_or(usual[1])];
        let most = self.denoiser.most_size().map_or(MAX_SIDE, |side| side * self.scale());
        for (side, side_pixels) in [("width", width), ("height", height)] {
            if !(1..=most).contains(&side_pixels) || !side_pixels.is_multiple_of(scale) {
                return Err(Error::Size { side, pixels: side_pixels, scale, most });
            }
        }
        Ok([width, height])
    }

    /// Rows and columns of their latents.
    ///
    /// # Errors
    /// As [`size`](Self::size).
    pub(crate) fn latents(&self, request: &ImageRequest) -> Result<[usize; 2], Error> {
        let [width, height] = self.size(request)?;
        Ok([height, width].map(|side| side / self.scale()))
    }
}
