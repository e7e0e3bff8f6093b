//! A picture in 8 bits.

use std::io::Cursor;
use std::path::Path;

use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader};
use outsize_checkpoint::{read_file, write_file};

use crate::error::Error;
use crate::resampling::{COLOURS, PictureFilter, other_height, other_width};

/// The most pixels of a side of a picture that is read.
const MAX_SIDE: u32 = 1 << 14;

/// What the header of a picture's file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureHeader {
    /// Pixels of a row, once it is turned upright.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// An upper bound on the bytes that decoding takes at once, its result included and the file's
    /// own bytes not.
    pub decoding_bytes: u64,
}

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
    /// A picture of values from -1 to 1, three for each pixel. What is beyond becomes the nearest
    /// of them, and what is not a number becomes 0.
    ///
    /// # Panics
    /// If there are not three values for each pixel.
    pub fn from_values(width: usize, height: usize, values: impl Iterator<Item = f32>) -> Self {
        let rgb: Vec<u8> = values.map(byte).collect();
        assert_eq!(rgb.len(), 3 * width * height, "three values a pixel");
        Self { width, height, rgb }
    }

    /// Reads a PNG, a JPEG or a WebP. What is transparent shows as it is stored, and gray becomes
    /// three equal colours.
    ///
    /// # Errors
    /// [`Error::Image`]: a file that cannot be read, is none of these, or has a side of more than
    /// 16,384 pixels.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::from_bytes(&file_bytes(path)?, path.display().to_string())
    }

    /// The same of the bytes of a file; messages name `name` for it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_bytes(bytes: &[u8], name: impl Into<String>) -> Result<Self, Error> {
        let reader = ImageReader::new(Cursor::new(bytes));
        let decode = || -> Result<DynamicImage, image::ImageError> {
            let mut reader = reader.with_guessed_format()?;
            let mut limits = image::Limits::default();
            (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
            reader.limits(limits);
            let mut decoder = reader.into_decoder()?;
            // Cameras say which side is up.
            let orientation = decoder.orientation()?;
            let mut image = DynamicImage::from_decoder(decoder)?;
            image.apply_orientation(orientation);
            Ok(image)
        };
        let image = decode()
            .map_err(|error| Error::Image { name: name.into(), reason: error.to_string() })?;
        let image = image.into_rgb8();
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { width, height, rgb: image.into_raw() })
    }

    /// What the header of a file's bytes says; messages name `name` for it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn header(bytes: &[u8], name: &str) -> Result<PictureHeader, Error> {
        let read = || -> Result<PictureHeader, image::ImageError> {
            let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
            let is_jpeg = reader.format() == Some(ImageFormat::Jpeg);
            let mut decoder = reader.into_decoder()?;
            let (mut width, mut height) = decoder.dimensions();
            let turned = [
                Orientation::Rotate90,
                Orientation::Rotate270,
                Orientation::Rotate90FlipH,
                Orientation::Rotate270FlipH,
            ];
            let is_turned = turned.contains(&decoder.orientation()?);
            if is_turned {
                (width, height) = (height, width);
            }
            // As it is stored, once more if it is turned, and in three bytes if it is not; of a
            // progressive JPEG its frequencies.
            let mut pixel = u64::from(decoder.color_type().bytes_per_pixel());
            pixel *= if is_turned { 2 } else { 1 };
            if decoder.color_type() != ColorType::Rgb8 {
                pixel += COLOURS as u64;
            }
            if is_jpeg && is_progressive(bytes) {
                pixel += 2 * COLOURS as u64;
            }
            let pixels = u64::from(width).saturating_mul(u64::from(height));
            let decoding_bytes = pixels.saturating_mul(pixel);
            let (width, height) = (width as usize, height as usize);
            Ok(PictureHeader { width, height, decoding_bytes })
        };
        let failed = |reason: String| Error::Image { name: name.to_owned(), reason };
        let header = read().map_err(|error| failed(error.to_string()))?;
        if [header.width, header.height].iter().any(|side| !(1..=MAX_SIDE as usize).contains(side))
        {
            return Err(failed(format!("its sides must have 1 to {MAX_SIDE} pixels")));
        }
        Ok(header)
    }

    /// The same picture in another size, as Pillow makes it.
    ///
    /// # Panics
    /// If there are not three bytes for each pixel.
    pub fn resized(&self, width: usize, height: usize, filter: PictureFilter) -> Self {
        if [self.width, self.height] == [width, height] {
            return self.clone();
        }
        assert_eq!(self.rgb.len(), COLOURS * self.width * self.height, "three bytes a pixel");
        let (columns, rows) = ([self.width, width], [self.height, height]);
        let lost = |[from, to]: [usize; 2]| from as i64 - to as i64;
        // What is made first is rounded to bytes before the rest is made of it, so that the order
        // shows. Pillow 13 has this one.
        let rgb = match lost(rows) > 0.max(2 * lost(columns)) {
            true => {
                let high = other_height(&self.rgb, self.width, rows, filter);
                other_width(&high, columns, filter)
            }
            false => other_height(&other_width(&self.rgb, columns, filter), width, rows, filter),
        };
        Self { width, height, rgb }
    }

    /// An upper bound on the bytes that [`resized`](Self::resized) takes at once, its result
    /// included.
    pub fn resizing_bytes(&self, width: usize, height: usize) -> u64 {
        let [from_width, from_height, width, height] =
            [self.width, self.height, width, height].map(|side| side as u64);
        // At most seven weights for each place of either side, with what holds them; and the sums
        // of a row.
        let taps = |from: u64, to: u64| 96 * (from + to);
        let taps = taps(from_width, width).max(taps(from_height, height));
        let between = (width * from_height).max(from_width * height);
        taps + 12 * from_width.max(width) + 3 * (between + width * height)
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

    /// Writes the picture as a PNG with `texts` as its metadata, each with a keyword of at most 79
    /// letters of ASCII: beside its place, then under its name.
    ///
    /// # Errors
    /// [`Error::Png`] for a picture without pixels, or a keyword that is none; and what writing
    /// says.
    pub fn write_png(&self, path: impl AsRef<Path>, texts: &[(&str, String)]) -> Result<(), Error> {
        let path = path.as_ref();
        let bytes = self
            .png(texts)
            .map_err(|source| Error::Png { path: path.to_owned(), reason: source.to_string() })?;
        Ok(write_file(path, &bytes)?)
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

/// Whether a JPEG comes in several passes over the picture, as far as its header says.
fn is_progressive(bytes: &[u8]) -> bool {
    let mut rest = bytes.get(2..).unwrap_or_default();
    while let [0xff, marker, high, low, ..] = *rest {
        match marker {
            // No frames, but tables that have numbers among theirs.
            0xc4 | 0xc8 | 0xcc => {}
            0xc0..=0xcf => return marker % 4 == 2,
            _ => {}
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        rest = rest.get(2 + length..).unwrap_or_default();
    }
    true
}

/// The bytes of the file of a picture, which is a regular one.
///
/// # Errors
/// [`Error::Image`]: it cannot be read, or has more than 256 MiB.
pub fn file_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    /// Files of cameras have a tenth.
    const MOST_BYTES: u64 = 256 << 20;
    read_file(path, MOST_BYTES).map_err(|error| {
        let (name, reason) = (path.display().to_string(), error.to_string());
        Error::Image { name, reason }
    })
}

/// A value from -1 to 1 as a byte.
pub fn byte(value: f32) -> u8 {
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
}
