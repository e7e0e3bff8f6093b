//! Images whose tokens a text may have.

use std::ops::Range;
use std::sync::Arc;

use super::KvCache;
use crate::image_features::FIRST_IMAGE_ID;
use crate::{Batch, Error, ImageFeatures};

/// Images that a text may have, and how far they move the positions behind them.
#[derive(Debug, Default)]
pub(super) struct HeldImages {
    images: Vec<HeldImage>,
    /// Columns behind images of the text, each with the positions that the image saves.
    shifts: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct HeldImage {
    ids: Range<u32>,
    features: Arc<ImageFeatures>,
}

/// Tokens of an image, one after the other, in a pass.
#[derive(Debug, Clone)]
pub(crate) struct ImagePart {
    /// Where they are in the pass.
    pub columns: Range<usize>,
    pub features: Arc<ImageFeatures>,
    /// The first of them, counted from 0 in the image.
    pub token: usize,
}

impl HeldImages {
    /// The image that an id is of, and which of its tokens it stands for.
    fn find(&self, id: u32) -> Option<(&Arc<ImageFeatures>, usize)> {
        let image = self.images.iter().find(|image| image.ids.contains(&id))?;
        Some((&image.features, (id - image.ids.start) as usize))
    }
}

impl KvCache {
    /// Has texts with tokens of an image run: their ids are `first` and those behind it. A text has
    /// all of them, one after the other, or none. They are found until
    /// [`retain_images`](Self::retain_images) forgets them.
    ///
    /// # Errors
    /// [`Error::ImageToken`]: ids below [`FIRST_IMAGE_ID`], or of an image that is held.
    pub fn add_image(&mut self, first: u32, features: ImageFeatures) -> Result<Range<u32>, Error> {
        let end =
            u32::try_from(features.tokens()).ok().and_then(|tokens| first.checked_add(tokens));
        let ids = first
            ..end.filter(|_| first >= FIRST_IMAGE_ID).ok_or(Error::ImageToken { id: first })?;
        let is_held = |held: &HeldImage| held.ids.start < ids.end && ids.start < held.ids.end;
        if self.images.images.iter().any(is_held) {
            return Err(Error::ImageToken { id: first });
        }
        let held = HeldImage { ids: ids.clone(), features: Arc::new(features) };
        self.images.images.push(held);
        Ok(ids)
    }

    /// Forgets images but those whose ids are to be kept. The tokens of others that were run stay
    /// in the text.
    pub fn retain_images(&mut self, keep: impl Fn(&Range<u32>) -> bool) {
        self.images.images.retain(|image| keep(&image.ids));
    }

    /// The tokens of images that a batch of one text has.
    pub(crate) fn image_parts(&self, batch: &Batch) -> Vec<ImagePart> {
        let mut parts: Vec<ImagePart> = Vec::new();
        for (column, id) in batch.ids().iter().enumerate() {
            let Some((features, token)) = self.images.find(*id) else { continue };
            match parts.last_mut() {
                Some(part)
                    if part.columns.end == column
                        && part.token + part.columns.len() == token
                        && Arc::ptr_eq(&part.features, features) =>
                {
                    part.columns.end += 1;
                }
                _ => parts.push(ImagePart {
                    columns: column..column + 1,
                    features: features.clone(),
                    token,
                }),
            }
        }
        parts
    }

    /// Checks that images are held whose tokens a batch has, and that it is of one text then.
    pub(crate) fn check_images(&self, batch: &Batch) -> Result<(), Error> {
        let mut images = batch.ids().iter().copied().filter(|id| *id >= FIRST_IMAGE_ID).peekable();
        if images.peek().is_some() && batch.rows() > 1 {
            return Err(Error::ImageBatch { rows: batch.rows() });
        }
        if let Some(id) = images.find(|id| self.images.find(*id).is_none()) {
            return Err(Error::ImageToken { id });
        }
        let is_cut = |part: &ImagePart| {
            let end = part.columns.start + part.features.tokens() - part.token;
            let is_within = part.token <= part.columns.start && end <= batch.tokens();
            part.features.sees_itself && !is_within
        };
        match self.image_parts(batch).into_iter().find(is_cut) {
            Some(part) => Err(Error::ImageCut { id: batch.ids()[part.columns.start] }),
            None => Ok(()),
        }
    }

    /// Columns of a batch that one pass has to run: images whose tokens see each other.
    pub fn uncut(&self, batch: &Batch) -> Vec<Range<usize>> {
        let begun = self.image_parts(batch).into_iter().filter(|part| part.token == 0);
        let seeing = begun.filter(|part| part.features.sees_itself);
        seeing.map(|part| part.columns.start..part.columns.start + part.features.tokens()).collect()
    }

    /// Whether there are images in sight, of this pass or before.
    pub(crate) fn has_images(&self) -> bool {
        !self.images.images.is_empty() || !self.images.shifts.is_empty()
    }

    /// By how many positions images save, those of a text go on from its columns.
    pub(crate) fn saved_positions(&self) -> usize {
        self.images.shifts.iter().map(|(_, saved)| saved).sum()
    }

    /// Forgets images behind the columns that are held.
    pub(super) fn forget_shifts(&mut self) {
        let position = self.position;
        self.images.shifts.retain(|(end, _)| *end <= position);
    }

    /// Counts the images that end in a batch that was run.
    pub(super) fn count_images(&mut self, batch: &Batch) {
        for ImagePart { columns, features, token } in self.image_parts(batch) {
            if let Some(grid) = &features.positions
                && token + columns.len() == features.tokens()
            {
                self.images.shifts.push((self.position + columns.end, grid.saved()));
            }
        }
    }
}
