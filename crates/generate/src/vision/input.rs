//! A file of an image that somebody gives.

use std::path::Path;
use std::sync::Arc;

use outsize_picture::{Error as PictureError, Picture, PictureHeader, file_bytes};

/// The file of an image: PNG, JPEG or WebP, read and not decoded. Clones share the bytes.
#[derive(Clone)]
pub struct ImageInput {
    name: Arc<str>,
    bytes: Arc<[u8]>,
    header: PictureHeader,
}

impl ImageInput {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is longer than 256 MiB, or is none of these kinds.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PictureError> {
        let path = path.as_ref();
        Self::new(path.display().to_string(), file_bytes(path)?)
    }

    /// The bytes of a file, which messages name so.
    ///
    /// # Errors
    /// Bytes that are not of these kinds.
    pub fn new(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Result<Self, PictureError> {
        let (name, bytes) = (name.into(), bytes.into());
        let header = Picture::header(&bytes, &name)?;
        Ok(Self { name: name.into(), bytes, header })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Width and height in pixels.
    pub fn size(&self) -> [usize; 2] {
        [self.header.width, self.header.height]
    }

    /// An upper bound on the bytes that decoding it takes.
    pub(crate) fn decoding_bytes(&self) -> u64 {
        self.header.decoding_bytes.saturating_add(self.len())
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether it has no bytes, which no image does.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Its pixels.
    ///
    /// # Errors
    /// A file that is damaged.
    pub fn decode(&self) -> Result<Picture, PictureError> {
        Picture::from_bytes(&self.bytes, &*self.name)
    }
}

impl PartialEq for ImageInput {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes) || self.bytes == other.bytes
    }
}

impl Eq for ImageInput {}

impl std::fmt::Debug for ImageInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [width, height] = self.size();
        write!(f, "ImageInput({}, {width} x {height})", self.name)
    }
}
