//! Pictures in 8 bits, and PNG files of them.

use std::path::Path;

use image::imageops::{FilterType::Lanczos3, resize};
use image::{DynamicImage, ImageBuffer, ImageDecoder, Rgb, RgbImage};
use outsize_checkpoint::write_file;

use crate::error::Error;

/// Channels of latents that a preview is made of.
pub(crate) const PREVIEW_CHANNELS: usize = 4;

/// What the four channels of Stable Diffusion's latents add to red, green and blue: Kevin Turner's fit to the decoder of version
/// 1.4 ("Decoding latents to RGB without upscaling", discuss.huggingface.co, 2022), as other software has it. It is not fitted to
/// the model at hand: another decoder's colours may differ.
const LATENT_COLOURS: [[f32; 3]; PREVIEW_CHANNELS] = [
    [0.298, 0.207, 0.208],
    [0.187, 0.286, 0.173],
    [-0.158, 0.189, 0.264],
    [-0.184, -0.271, -0.473],
];

/// Rows whose columns are resized at a time.
const RESIZED_ROWS: usize = 64;

/// Colours of a pixel.
pub(crate) const COLOURS: usize = 3;

/// The most pixels of a side of a picture that is read.
const MAX_SIDE: u32 = 1 << 14;

/// A picture: three bytes a pixel (red, green, blue), row after row.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `3 * width * height` bytes.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// A picture of values from -1 to 1, three for each pixel. What is beyond becomes the nearest of them, and what is not a
    /// number becomes 0.
    ///
    /// # Panics
    /// If there are not three values for each pixel.
    pub fn from_values(width: usize, height: usize, values: impl Iterator<Item = f32>) -> Self {
        let rgb: Vec<u8> = values.map(byte).collect();
        assert_eq!(rgb.len(), 3 * width * height, "three values a pixel");
        Self { width, height, rgb }
    }

    /// Reads a PNG, a JPEG or a WebP. What is transparent shows as it is stored, and gray becomes three equal colours.
    ///
    /// # Errors
    /// [`Error::Image`]: a file that cannot be read, is none of these, or has a side of more than 16,384 pixels.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |reason: String| Error::Image { path: path.to_owned(), reason };
        let reader =
            image::ImageReader::open(path).and_then(image::ImageReader::with_guessed_format);
        let mut reader = reader.map_err(|error| failed(error.to_string()))?;
        let mut limits = image::Limits::default();
        (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
        reader.limits(limits);
        let decoded = || {
            let mut decoder = reader.into_decoder()?;
            // Cameras say which side is up.
            let orientation = decoder.orientation()?;
            let mut image = DynamicImage::from_decoder(decoder)?;
            image.apply_orientation(orientation);
            Ok(image)
        };
        let decoded: Result<DynamicImage, image::ImageError> = decoded();
        let image = decoded.map_err(|error| failed(error.to_string()))?.into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { width, height, rgb: image.into_raw() })
    }

    /// The same picture in another size, by Lanczos' filter as Pillow has it.
    ///
    /// # Panics
    /// If there are not three bytes for each pixel.
    pub fn resized(&self, width: usize, height: usize) -> Self {
        if [self.width, self.height] == [width, height] {
            return self.clone();
        }
        let [from_width, from_height, to_width, to_height] =
            [self.width, self.height, width, height].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let row = COLOURS * self.width;
        assert_eq!(self.rgb.len(), row * self.height, "three bytes a pixel");
        // As Pillow, columns first, and rounded to bytes before rows. Each pixel takes four floats meanwhile.
        let mut wide = Vec::with_capacity(COLOURS * width * self.height);
        for rows in self.rgb.chunks(row * RESIZED_ROWS) {
            let height = (rows.len() / row) as u32;
            let rows = ImageBuffer::<Rgb<u8>, _>::from_raw(from_width, height, rows);
            let rows = rows.expect("the rows are whole");
            wide.extend(resize(&rows, to_width, height, Lanczos3).into_raw());
        }
        let wide = RgbImage::from_raw(to_width, from_height, wide).expect("the rows are whole");
        let rgb = resize(&wide, to_width, to_height, Lanczos3).into_raw();
        Self { width, height, rgb }
    }

    /// An upper bound on the bytes that [`resized`](Self::resized) takes at once, its result included.
    pub(crate) fn resizing_bytes(&self, width: usize, height: usize) -> u64 {
        let [from_width, from_height, width, height] =
            [self.width, self.height, width, height].map(|side| side as u64);
        let some = RESIZED_ROWS as u64 * (16 * from_width + 3 * width);
        some + 3 * width * from_height + 19 * width * height
    }

    /// Whether each pixel is nearer to white than to black, by the weights of ITU-R 601.
    pub fn is_bright(&self) -> Vec<bool> {
        let bright = |pixel: &[u8]| {
            let [red, green, blue] = [0, 1, 2].map(|colour| u32::from(pixel[colour]));
            299 * red + 587 * green + 114 * blue >= 127_500
        };
        self.rgb.chunks_exact(COLOURS).map(bright).collect()
    }

    /// Values from -1 to 1, three for each pixel.
    pub fn values(&self) -> Vec<f32> {
        self.rgb.iter().map(|byte| f32::from(*byte) / 255.0 * 2.0 - 1.0).collect()
    }

    /// A small picture of latents `[rows, columns, 4]`, one pixel for each: a linear approximation of what the decoder would
    /// make of them. `None` for latents of another number of channels.
    pub fn preview(latents: &[f32], rows: usize, columns: usize) -> Option<Self> {
        if latents.len() != PREVIEW_CHANNELS * rows * columns {
            return None;
        }
        let values = latents.chunks_exact(PREVIEW_CHANNELS).flat_map(|latent| {
            [0, 1, 2].map(|colour| {
                latent.iter().zip(LATENT_COLOURS).map(|(value, share)| value * share[colour]).sum()
            })
        });
        Some(Self::from_values(columns, rows, values))
    }

    /// Writes the picture as a PNG with `texts` as its metadata, each with a keyword of at most 79 letters of ASCII: beside its
    /// place, then under its name.
    ///
    /// # Errors
    /// [`Error::Png`] for a picture without pixels, or a keyword that is none; and what writing says.
    pub fn write_png(&self, path: impl AsRef<Path>, texts: &[(&str, String)]) -> Result<(), Error> {
        let path = path.as_ref();
        let bytes = self
            .png(texts)
            .map_err(|source| Error::Png { path: path.to_owned(), reason: source.to_string() })?;
        Ok(write_file(path, &bytes).map_err(outsize_core::Error::from)?)
    }

    fn png(&self, texts: &[(&str, String)]) -> Result<Vec<u8>, png::EncodingError> {
        let mut bytes = Vec::new();
        let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut encoder = png::Encoder::new(&mut bytes, side(self.width), side(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        for (keyword, text) in texts {
            let (keyword, text) = ((*keyword).to_owned(), text.clone());
            // Plain text chunks are in Latin-1.
            match text.chars().all(|letter| u8::try_from(letter).is_ok()) {
                true => encoder.add_text_chunk(keyword, text)?,
                false => encoder.add_itxt_chunk(keyword, text)?,
            }
        }
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()?;
        Ok(bytes)
    }
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}

/// A value from -1 to 1 as a byte.
pub(crate) fn byte(value: f32) -> u8 {
    ((value * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_picture_reads_back_with_its_texts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.png");
        let values = [-2.0, -1.0, 0.0, 1.0, 2.0, f32::NAN, -0.5, 0.5, 0.25, 0.0, 0.0, 0.0];
        let picture = Picture::from_values(2, 2, values.into_iter());
        assert_eq!(picture.rgb[..9], [0, 0, 128, 255, 255, 0, 64, 191, 159]);
        let texts = [("prompt", "a café".to_owned()), ("negative_prompt", "猫".to_owned())];
        picture.write_png(&path, &texts).unwrap();
        let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut rgb).unwrap();
        assert_eq!(rgb, picture.rgb);
        let info = reader.info();
        assert_eq!(info.uncompressed_latin1_text[0].text, "a café");
        assert_eq!(info.utf8_text[0].get_text().unwrap(), "猫");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert!(picture.write_png(&path, &[("", String::new())]).is_err());
    }

    #[test]
    fn a_preview_has_a_pixel_for_each_latent() {
        let latents = [0.0; 24];
        let picture = Picture::preview(&latents, 2, 3).unwrap();
        assert_eq!((picture.width, picture.height), (3, 2));
        assert!(picture.rgb.iter().all(|byte| *byte == 128));
        assert_eq!(Picture::preview(&latents, 2, 2), None);
    }
}
