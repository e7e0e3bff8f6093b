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

/// A token of an image.
#[derive(Debug, Clone)]
pub(crate) struct ImageToken {
    pub features: Arc<ImageFeatures>,
    /// Which of its tokens, counted from 0.
    pub token: usize,
}

impl HeldImages {
    fn find(&self, id: u32) -> Option<ImageToken> {
        let image = self.images.iter().find(|image| image.ids.contains(&id))?;
        Some(ImageToken {
            features: image.features.clone(),
            token: (id - image.ids.start) as usize,
        })
    }
}

impl KvCache {
    /// Has texts with tokens of an image run: their ids are `first` and those behind it. A text has all of them, one after the
    /// other, or none. They are found until [`retain_images`](Self::retain_images) forgets them.
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

    /// Forgets images but those whose ids are to be kept. The tokens of others that were run stay in the text.
    pub fn retain_images(&mut self, keep: impl Fn(&Range<u32>) -> bool) {
        self.images.images.retain(|image| keep(&image.ids));
    }

    /// The token of an image that an id stands for.
    pub(crate) fn image_token(&self, id: u32) -> Option<ImageToken> {
        self.images.find(id)
    }

    /// Checks that images are held whose tokens a batch has, and that it is of one text then.
    pub(crate) fn check_images(&self, batch: &Batch) -> Result<(), Error> {
        let Some(index) = batch.ids().iter().position(|id| *id >= FIRST_IMAGE_ID) else {
            return Ok(());
        };
        if batch.rows() > 1 {
            return Err(Error::ImageBatch { rows: batch.rows() });
        }
        let missing = |id: &&u32| **id >= FIRST_IMAGE_ID && self.images.find(**id).is_none();
        if let Some(id) = batch.ids()[index..].iter().find(missing) {
            return Err(Error::ImageToken { id: *id });
        }
        let is_cut = |(column, id): (usize, &u32)| {
            let ImageToken { features, token } = self.images.find(*id)?;
            let end = column + features.tokens() - token;
            (features.sees_itself && (token > column || end > batch.tokens())).then_some(*id)
        };
        match batch.ids().iter().enumerate().find_map(is_cut) {
            Some(id) => Err(Error::ImageCut { id }),
            None => Ok(()),
        }
    }

    /// Columns of a batch that one pass has to run: images whose tokens see each other.
    pub fn uncut(&self, batch: &Batch) -> Vec<Range<usize>> {
        let mut uncut: Vec<Range<usize>> = Vec::new();
        for (column, id) in batch.ids().iter().enumerate() {
            match self.images.find(*id) {
                Some(ImageToken { features, token: 0 }) if features.sees_itself => {
                    uncut.push(column..column + features.tokens());
                }
                _ => {}
            }
        }
        uncut
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
        for (column, id) in batch.ids().iter().enumerate() {
            let Some(ImageToken { features, token }) = self.images.find(*id) else { continue };
            if let Some(grid) = &features.positions
                && token + 1 == features.tokens()
            {
                self.images.shifts.push((self.position + column + 1, grid.saved()));
            }
        }
    }
}
