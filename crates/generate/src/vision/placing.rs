//! Where images are in a prompt.

use std::ops::Range;

use outsize_models::FIRST_IMAGE_ID;

use super::EncodedImage;
use crate::error::{Error, Result};

/// Gives ids to the tokens of images, each once.
#[derive(Debug)]
pub struct ImageIds {
    next: u32,
}

impl Default for ImageIds {
    fn default() -> Self {
        Self { next: FIRST_IMAGE_ID }
    }
}

impl ImageIds {
    /// Those of the next image.
    ///
    /// # Errors
    /// There are no more, after two billion.
    pub fn take(&mut self, image: &EncodedImage) -> Result<Range<u32>> {
        let (start, tokens) = (self.next, image.features.tokens());
        let end = u32::try_from(tokens).ok().and_then(|tokens| start.checked_add(tokens));
        self.next = end.ok_or(Error::ImageIds)?;
        Ok(start..self.next)
    }
}

/// A prompt in which each token that stands for an image is replaced by those of the next one.
///
/// # Errors
/// [`Error::ImagePlaces`]: not as many images as places.
pub fn with_images(prompt: &[u32], place: u32, images: &[Range<u32>]) -> Result<Vec<u32>> {
    let places = prompt.iter().filter(|id| **id == place).count();
    if places != images.len() {
        return Err(Error::ImagePlaces { places, images: images.len() });
    }
    let mut images = images.iter().cloned();
    let of = |id: &u32| match *id == place {
        true => images.next().unwrap_or_default(),
        false => *id..*id + 1,
    };
    Ok(prompt.iter().flat_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_becomes_an_image() {
        let images = [100..103, 200..201];
        assert_eq!(with_images(&[1, 7, 2, 7], 7, &images).unwrap(), [1, 100, 101, 102, 2, 200]);
        assert_eq!(with_images(&[1], 7, &[]).unwrap(), [1]);
        for prompt in [&[7][..], &[7, 7, 7]] {
            let error = with_images(prompt, 7, &images).unwrap_err();
            assert!(matches!(error, Error::ImagePlaces { images: 2, .. }), "{error}");
        }
    }
}
