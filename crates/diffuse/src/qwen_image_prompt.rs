//! What stands around a prompt of Qwen-Image.

use crate::kind::PipelineKind;

/// What stands around a prompt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QwenImagePrompt {
    /// What is said before the user speaks.
    system: &'static str,
    /// Tokens in front of the prompt that the transformer does not see.
    pub unseen_tokens: usize,
    /// Whether pictures are numbered.
    numbers: bool,
}

/// A picture.
const PICTURE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

/// What those are told that change pictures.
const CHANGE: &str = "Describe the key features of the input image (color, shape, size, texture, objects, background), then explain how \
                      the user's text instruction should alter or modify the image. Generate a new image that meets the user's \
                      requirements while maintaining consistency with the original input where appropriate.";

impl QwenImagePrompt {
    /// That of a kind of Qwen-Image.
    pub fn of(kind: PipelineKind) -> &'static Self {
        match kind {
            PipelineKind::QwenImageEdit => {
                &Self { system: CHANGE, unseen_tokens: 64, numbers: false }
            }
            PipelineKind::QwenImageEditPlus => {
                &Self { system: CHANGE, unseen_tokens: 64, numbers: true }
            }
            _ => &Self {
                system: "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial \
                         relationships of the objects and background:",
                unseen_tokens: 34,
                numbers: false,
            },
        }
    }

    /// What is before a prompt with so many pictures, and behind it.
    pub fn around(&self, pictures: usize) -> [String; 2] {
        let pictures = (1..=pictures).map(|number| match self.numbers {
            true => format!("Picture {number}: {PICTURE}"),
            false => PICTURE.to_owned(),
        });
        let (system, pictures) = (self.system, pictures.collect::<String>());
        [
            format!("<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{pictures}"),
            "<|im_end|>\n<|im_start|>assistant\n".to_owned(),
        ]
    }
}
