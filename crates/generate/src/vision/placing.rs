//! Where images are in a prompt.

use std::borrow::Cow;
use std::ops::Range;

use outsize_models::{FIRST_IMAGE_ID, ImageSpelling, PatchLayout};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

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
    /// Those of the next image, of so many tokens.
    ///
    /// # Errors
    /// There are no more, after two billion.
    pub fn take(&mut self, tokens: usize) -> Result<Range<u32>> {
        let start = self.next;
        let end = u32::try_from(tokens).ok().and_then(|tokens| start.checked_add(tokens));
        self.next = end.ok_or(Error::ImageIds)?;
        Ok(start..self.next)
    }
}

/// The tokens of a prompt with those of its images, each with its ids and its rows and columns of
/// tokens.
///
/// # Errors
/// [`Error::ImagePlaces`]: not as many images as places. [`Error::NoImages`]: the tokenizer has no
/// token for the ends of rows.
pub fn place_images(
    prompt: &[u32],
    images: impl Iterator<Item = (Range<u32>, [usize; 2])>,
    layout: &PatchLayout,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let texts = images.map(|(ids, tokens)| spelled(ids, tokens, layout.spelling, tokenizer));
    with_images(prompt, image_place(layout, tokenizer)?, &texts.collect::<Result<Vec<_>>>()?)
}

/// The token that prompts have for an image.
///
/// # Errors
/// [`Error::NoImages`]: the tokenizer has none.
pub fn image_place(layout: &PatchLayout, tokenizer: &Tokenizer) -> Result<u32> {
    match layout.spelling {
        ImageSpelling::Tiles => tile_token(IMAGE, tokenizer),
        _ => Ok(layout.image_token),
    }
}

/// What prompts have for an image that is seen as tiles.
const IMAGE: &str = "<|image|>";

fn tile_token(name: &str, tokenizer: &Tokenizer) -> Result<u32> {
    let reason = "tokenizer.json has not all of the tokens <|image|>, <|image_start|>, <|image_end|>, <|tile_x_separator|> \
                  and <|tile_y_separator|>";
    tokenizer.token_id(name).ok_or(Error::NoImages { reason })
}

/// The same of one whose tiles have so many rows and columns of tokens together.
fn spelled_tiles(
    ids: Range<u32>,
    [rows, columns]: [usize; 2],
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let token = |name| tile_token(name, tokenizer);
    let (beside, below) = (token("<|tile_x_separator|>")?, token("<|tile_y_separator|>")?);
    let mut text = vec![token("<|image_start|>")?];
    let mut tile = ids.clone();
    let of_tiles = rows * columns;
    let of_one = ids.len().checked_sub(of_tiles).filter(|tokens| *tokens > 0);
    if let Some(of_one) = of_one {
        let side = of_one.isqrt();
        for _ in 0..rows / side {
            for column in 0..columns / side {
                if column > 0 {
                    text.push(beside);
                }
                text.extend(tile.by_ref().take(of_one));
            }
            text.push(below);
        }
    }
    text.push(token(IMAGE)?);
    text.extend(tile);
    text.push(token("<|image_end|>")?);
    Ok(text)
}

/// What a text has for an image whose tokens have these ids, in so many rows and columns; without
/// marks that prompts have.
fn spelled(
    ids: Range<u32>,
    [rows, columns]: [usize; 2],
    spelling: ImageSpelling,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let token = |name, reason| tokenizer.token_id(name).ok_or(Error::NoImages { reason });
    let wrapped = |ids: Range<u32>, [begin, end]: [u32; 2]| {
        std::iter::once(begin).chain(ids).chain([end]).collect()
    };
    match spelling {
        ImageSpelling::Bare
        | ImageSpelling::Marked(_)
        | ImageSpelling::Framed
        | ImageSpelling::Quoted { .. } => {
            return Ok(ids.collect());
        }
        ImageSpelling::Tiles => return spelled_tiles(ids, [rows, columns], tokenizer),
        ImageSpelling::Wrapped(marks) => return Ok(wrapped(ids, marks)),
        ImageSpelling::Named([begin, end]) => {
            let reason = "tokenizer.json has no token for the begin or the end of an image";
            return Ok(wrapped(ids, [token(begin, reason)?, token(end, reason)?]));
        }
        ImageSpelling::NamedTiles([begin, behind, end]) => {
            let reason = "tokenizer.json has no token for the begin, a tile or the end of an image";
            let [begin, behind, end] = [begin, behind, end].map(|name| token(name, reason));
            let (mut text, behind) = (vec![begin?], behind?);
            for tile in tiles_of(ids, rows * columns) {
                text.extend(tile);
                text.push(behind);
            }
            text.push(end?);
            return Ok(text);
        }
        ImageSpelling::NumberedTiles => {
            let reason = "tokenizer.json has no token <|START_OF_IMG|> or <|END_OF_IMG|>";
            let mut text = vec![token("<|START_OF_IMG|>", reason)?];
            let tiles = tiles_of(ids, rows * columns);
            let last = tiles.len();
            for (number, tile) in (1..).zip(tiles) {
                let name = if number == last { "GLOBAL" } else { &number.to_string() };
                text.extend(tokenizer.encode(&format!("TILE_{name}"), false)?);
                text.extend(tile);
            }
            text.push(token("<|END_OF_IMG|>", reason)?);
            return Ok(text);
        }
        ImageSpelling::PlacedTiles => {
            let fake = "<fake_token_around_image>";
            let end = token(fake, "tokenizer.json has no token <fake_token_around_image>")?;
            let (mut text, tiles) = (Vec::new(), tiles_of(ids, rows * columns));
            let in_row = columns / tiles.first().map_or(1, |tile| tile.len().isqrt());
            let last = tiles.len().saturating_sub(1);
            for (number, tile) in tiles.into_iter().enumerate() {
                let (row, column) = (number / in_row, number % in_row);
                let lines = match column {
                    _ if number == 0 => "",
                    _ if number == last => "\n\n",
                    0 => "\n",
                    _ => "",
                };
                let place = match number == last {
                    true => "<global-img>".to_owned(),
                    false => format!("<row_{}_col_{}>", row + 1, column + 1),
                };
                text.extend(tokenizer.encode(&format!("{lines}{fake}{place}"), false)?);
                text.extend(tile);
            }
            text.push(end);
            return Ok(text);
        }
        ImageSpelling::Rows => {}
    }
    let reason =
        "tokenizer.json has no token [IMG_BREAK] or [IMG_END], which end the rows of an image";
    let (row_ends, image_ends) = (token("[IMG_BREAK]", reason)?, token("[IMG_END]", reason)?);
    let mut text = Vec::with_capacity(rows * (columns + 1));
    for row in 0..rows {
        let start = ids.start + (row * columns) as u32;
        text.extend(start..start + columns as u32);
        text.push(if row + 1 == rows { image_ends } else { row_ends });
    }
    Ok(text)
}

/// The tokens of each tile of an image, of which there are so many in rows and columns: where there
/// are several tiles there is one more, of all of it, the last.
fn tiles_of(ids: Range<u32>, in_rows: usize) -> Vec<Vec<u32>> {
    let of_one = match ids.len().checked_sub(in_rows) {
        Some(of_whole) if of_whole > 0 => of_whole,
        _ => ids.len(),
    };
    ids.collect::<Vec<_>>().chunks(of_one.max(1)).map(<[u32]>::to_vec).collect()
}

/// The text of a prompt with so many images as it is read: where the text itself has to say where
/// they are, before it if it does not.
pub fn framed(prompt: &str, images: usize, spelling: ImageSpelling) -> Cow<'_, str> {
    /// What prompts have for an image.
    const BEGINS: &str = "<start_of_image>";
    /// What the model was taught.
    const FRAME: &str = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n";
    match spelling {
        ImageSpelling::Framed if images > 0 => match prompt.contains(BEGINS) {
            true => prompt.replace(BEGINS, FRAME).into(),
            false => (FRAME.repeat(images) + prompt).into(),
        },
        ImageSpelling::NumberedTiles if images > 0 => {
            prompt.replace("<image>", "<|IMG_PATCH|>").into()
        }
        ImageSpelling::Tiles if images > 0 && !prompt.contains(IMAGE) => {
            (IMAGE.repeat(images) + prompt).into()
        }
        ImageSpelling::Quoted { token, text } if images > 0 && !prompt.contains(token) => {
            (text.repeat(images) + prompt).into()
        }
        _ => prompt.into(),
    }
}

/// A prompt in which each token that stands for an image is replaced by what the text has for the
/// next one.
fn with_images(prompt: &[u32], place: u32, images: &[Vec<u32>]) -> Result<Vec<u32>> {
    let places = prompt.iter().filter(|id| **id == place).count();
    if places != images.len() {
        return Err(Error::ImagePlaces { places, images: images.len() });
    }
    let mut images = images.iter();
    let mut ids = Vec::with_capacity(prompt.len() + images.clone().map(Vec::len).sum::<usize>());
    for id in prompt {
        match images.as_slice().first().filter(|_| *id == place) {
            Some(image) => {
                ids.extend(image);
                images.next();
            }
            None => ids.push(*id),
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_becomes_an_image() {
        let images = [vec![100, 101, 102], vec![200]];
        assert_eq!(with_images(&[1, 7, 2, 7], 7, &images).unwrap(), [1, 100, 101, 102, 2, 200]);
        assert_eq!(with_images(&[1], 7, &[]).unwrap(), [1]);
        for prompt in [&[7][..], &[7, 7, 7]] {
            let error = with_images(prompt, 7, &images).unwrap_err();
            assert!(matches!(error, Error::ImagePlaces { images: 2, .. }), "{error}");
        }
    }
}
