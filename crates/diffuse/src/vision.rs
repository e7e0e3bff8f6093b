//! What a text encoder sees of pictures: its own encoder of them, and how they are cut into
//! patches.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use outsize_generate::ImageProcessor;
use outsize_models::arch::QwenVisionModel;
use outsize_models::{ImageFeatures, PatchLayout, PicturePass, PictureSize, VisionModel};
use outsize_picture::{COLOURS, Picture};
use outsize_stream::Stats;

use crate::error::Error;
use crate::part::{Part, PartDescription, PassBytes, Turn};
use crate::pipeline_part::PipelinePart;
use crate::settings::ImageSettings;

/// An encoder of pictures that is described.
#[derive(Debug)]
pub(crate) struct Vision {
    pub part: Part<QwenVisionModel>,
    pub layout: PatchLayout,
    processor: ImageProcessor,
}

/// A picture among the tokens of a text.
#[derive(Debug, Clone)]
pub(crate) struct SeenPicture {
    /// Rows and columns of its tokens.
    pub tokens: [usize; 2],
    /// What stands for it.
    pub features: ImageFeatures,
}

impl Vision {
    /// That of the pipeline at `place`, whose text encoder is described; `processor` is the path
    /// and the text of the file that says how pictures are seen.
    pub fn new(
        place: &Path,
        description: &PartDescription,
        (name, text): (&str, &str),
    ) -> Result<Self, Error> {
        let part = Part::<QwenVisionModel>::new(PipelinePart::VisionEncoder, place, description)?;
        let layout = QwenVisionModel::layout(&part.config.config);
        let processor = ImageProcessor::parse(&place.join(name), text, &layout)?;
        Ok(Self { part, layout, processor })
    }

    /// Tokens of pictures of such sizes in pixels.
    pub fn tokens(&self, sizes: &[[usize; 2]]) -> Result<usize, Error> {
        let tokens = sizes.iter().map(|size| Ok(self.processor.tokens(*size)?));
        tokens.sum()
    }

    /// A pass over the patches of the largest of them.
    pub fn pass(&self, sizes: &[[usize; 2]]) -> Result<PicturePass, Error> {
        let mut largest = PictureSize { batch: 1, rows: 0, columns: 0 };
        for size in sizes {
            let [rows, columns] = self.processor.grid(*size)?;
            let latents = PictureSize { batch: 1, rows, columns };
            if latents.pixels() > largest.pixels() {
                largest = latents;
            }
        }
        Ok(PicturePass { latents: largest, tokens: 0 })
    }

    /// Bytes that they take until texts are read with them: pixels, and what stands for them.
    pub fn held_bytes(&self, sizes: &[[usize; 2]]) -> Result<u64, Error> {
        let pixels: usize = sizes.iter().map(|[width, height]| width * height).sum();
        Ok((COLOURS * pixels + 4 * self.tokens(sizes)? * self.layout.features) as u64)
    }

    /// What a pass over one of them holds at most.
    pub fn pass_bytes(
        &self,
        settings: &ImageSettings,
        sizes: &[[usize; 2]],
        threads: usize,
    ) -> Result<PassBytes, Error> {
        let patches = self.pass(sizes)?.latents.pixels();
        let activations = self.part.config.model().activation_bytes(patches as usize, threads);
        let cutting = sizes.iter().map(|size| self.processor.patches_bytes(*size)).max();
        Ok(PassBytes {
            activations: activations.max(cutting.unwrap_or(0)),
            // Pictures are seen by the processors.
            on_gpu: u64::MAX,
            beside_gpu: 0,
            packed: self.part.config.packed_bytes(settings.compute, patches),
        })
    }

    /// What the text encoder takes of pictures, when it is the turn of this part.
    pub fn see(
        &self,
        turn: &Turn<'_>,
        pictures: &[Picture],
    ) -> Result<(Vec<SeenPicture>, Stats), Error> {
        let module = turn.module(&self.part);
        let mut seen = Vec::with_capacity(pictures.len());
        for picture in pictures {
            let sides = self.processor.grid([picture.width, picture.height])?;
            let patches = self.processor.patches(picture)?;
            let data = TensorData::new(patches, [sides[0] * sides[1], self.layout.patch_values()]);
            let pixels = Tensor::<2>::from_data(data, (&turn.settings.device, DType::F32));
            let features = module.run(|module| module.run(|model| model.see(pixels, sides)))??;
            let tokens = sides.map(|side| side / self.layout.merge_size);
            seen.push(SeenPicture { tokens, features });
        }
        Ok((seen, module.run(|module| module.stats())?))
    }
}
