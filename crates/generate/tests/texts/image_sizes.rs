//! The sizes in which images are seen: those of the processors of `transformers`.

use crate::common::checkpoint::fixture;
use outsize_generate::{Error, ImageProcessor, VisionEncoder};
use proptest::prelude::*;

fn processor(name: &str) -> ImageProcessor {
    VisionEncoder::open(&fixture(name), 1000).unwrap().unwrap().processor().clone()
}

/// Checks what each size becomes; with at most 6 tokens, an image of 75 x 49 becomes `small`.
fn assert_seen(name: &str, sizes: &[([usize; 2], [usize; 2])], small: [usize; 2]) {
    let processor = processor(name);
    for &(size, seen) in sizes {
        assert_eq!(processor.seen(size).unwrap(), seen, "{name}, {size:?}");
    }
    assert_eq!(processor.with_most_tokens(6).seen([75, 49]).unwrap(), small, "{name}");
}

/// Checks rows and columns of tokens of tiles that have 4 each, and how many tiles there are with
/// one of the whole image.
fn assert_tiles(name: &str, sizes: &[([usize; 2], [usize; 2], usize)]) {
    let processor = processor(name);
    for &(size, tokens, count) in sizes {
        assert_eq!(processor.token_grid(size).unwrap(), tokens, "{name}, {size:?}");
        assert_eq!(processor.tokens(size).unwrap(), 4 * count, "{name}, {size:?}");
        assert_eq!(processor.tiles(size), count, "{name}, {size:?}");
        assert_eq!(processor.seen(size).unwrap(), [16, 16 * count], "{name}, {size:?}");
    }
}

/// Checks how many tiles an image of 75 x 49 becomes with at most so many tokens.
fn assert_fewer_tiles(name: &str, counts: &[(usize, usize)]) {
    for &(tokens, count) in counts {
        let small = processor(name).with_most_tokens(tokens);
        assert_eq!(small.tokens([75, 49]).unwrap(), 4 * count, "{name}, {tokens}");
    }
}

#[test]
fn images_are_seen_in_the_size_of_the_reference() {
    // Of `smart_resize` with a factor of 8, from 256 to 1,536 pixels.
    assert_seen(
        "vision-qwen3_vl",
        &[
            ([21, 10], [24, 16]),
            ([75, 49], [48, 24]),
            ([16, 16], [16, 16]),
            ([20, 12], [16, 16]),
            ([1, 100], [8, 160]),
            ([1000, 10], [384, 8]),
            ([40, 36], [40, 32]),
            ([3, 500], [8, 208]),
            ([4000, 3000], [40, 32]),
        ],
        [24, 8],
    );
    let qwen = processor("vision-qwen3_vl");
    assert!(matches!(qwen.seen([1, 201]), Err(Error::ImageAspect { width: 1, height: 201 })));
    assert_eq!(qwen.with_most_tokens(6).tokens([8, 8]).unwrap(), 4);
    // Of `get_resize_output_image_size` with a longest side of 44 and patches of 8.
    assert_seen(
        "vision-mistral3",
        &[
            ([21, 10], [24, 16]),
            ([75, 49], [48, 32]),
            ([44, 44], [48, 48]),
            ([1, 1], [8, 8]),
            ([4000, 3000], [48, 40]),
            ([400, 10], [48, 8]),
        ],
        [24, 16],
    );
    assert_eq!(processor("vision-mistral3").with_most_tokens(6).tokens([44, 44]).unwrap(), 4);
    // Of `smart_resize` of two frames with a factor of 8, from 256 to 1,536 pixels each.
    assert_seen(
        "vision-glm4v",
        &[
            ([21, 10], [24, 16]),
            ([75, 49], [48, 24]),
            ([20, 12], [16, 16]),
            ([1, 100], [8, 384]),
            ([1000, 10], [384, 8]),
            ([40, 36], [40, 32]),
            ([3, 500], [8, 504]),
            ([4000, 3000], [40, 32]),
            ([5, 7], [16, 24]),
        ],
        [24, 8],
    );
    // Of `get_aspect_ratio_preserving_size` with 20 tokens of 12 pixels a side.
    assert_seen(
        "vision-gemma4",
        &[
            ([21, 10], [72, 36]),
            ([75, 49], [60, 36]),
            ([1, 1], [48, 48]),
            ([4000, 3000], [60, 36]),
            ([400, 10], [240, 12]),
            ([3, 500], [12, 240]),
        ],
        [36, 12],
    );
    assert_eq!(processor("vision-gemma4").with_most_tokens(6).tokens([10, 44]).unwrap(), 5);
    // Of `smart_resize` of Muse Glimmer with 24 tokens of 8 pixels a side; of squares, which have
    // two, the larger.
    assert_seen(
        "vision-muse_glimmer",
        &[
            ([21, 10], [16, 8]),
            ([75, 49], [48, 32]),
            ([1, 1], [8, 8]),
            ([4000, 3000], [40, 32]),
            ([300, 100], [64, 24]),
            ([44, 60], [32, 40]),
            ([20, 20], [24, 24]),
        ],
        [24, 16],
    );
    // No more tokens than there may be, though they are more there.
    assert_eq!(processor("vision-muse_glimmer").seen([400, 10]).unwrap(), [192, 8]);
    // Of `navit_resize` with 90 patches of 4 pixels a side, at most 16 a side.
    assert_seen(
        "vision-kimi_k25",
        &[
            ([21, 10], [24, 16]),
            ([75, 49], [48, 32]),
            ([1, 1], [8, 8]),
            ([4000, 3000], [48, 32]),
            ([400, 10], [64, 8]),
            ([3, 500], [8, 64]),
            ([300, 100], [64, 24]),
            ([44, 60], [32, 48]),
        ],
        [24, 16],
    );
}

#[test]
fn images_become_as_many_tiles_as_of_the_reference() {
    // Of `Llama4ImageProcessor` with at most 6 tiles of 16 pixels a side, each of 4 tokens; and one
    // more of all of it.
    assert_tiles(
        "vision-llama4",
        &[
            ([21, 10], [2, 4], 3),
            ([75, 49], [4, 6], 7),
            ([1, 1], [2, 2], 1),
            ([16, 16], [2, 2], 1),
            ([17, 16], [2, 4], 3),
            ([4000, 3000], [4, 6], 7),
            ([400, 10], [2, 12], 7),
            ([3, 500], [12, 2], 7),
            ([30, 31], [4, 4], 5),
        ],
    );
    assert_fewer_tiles("vision-llama4", &[(27, 5), (12, 3), (11, 1), (1, 1)]);
    // The same of `get_optimal_tiled_canvas`; of squares as many as there are pixels for.
    for name in ["vision-internvl", "vision-aya_vision"] {
        assert_tiles(
            name,
            &[
                ([21, 10], [2, 4], 3),
                ([75, 49], [4, 6], 7),
                ([1, 1], [2, 2], 1),
                ([16, 16], [2, 2], 1),
                ([24, 24], [4, 4], 5),
                ([400, 10], [2, 12], 7),
                ([3, 500], [12, 2], 7),
                ([30, 31], [4, 4], 5),
                ([20, 21], [2, 2], 1),
            ],
        );
    }
    assert_fewer_tiles("vision-internvl", &[(27, 3)]);
    // The same of Command A Vision.
    assert_tiles(
        "vision-cohere2_vision",
        &[
            ([21, 10], [2, 4], 3),
            ([75, 49], [4, 6], 7),
            ([1, 1], [2, 2], 1),
            ([16, 16], [2, 2], 1),
            ([17, 16], [2, 4], 3),
            ([24, 24], [4, 4], 5),
            ([4000, 3000], [4, 6], 7),
            ([400, 10], [2, 12], 7),
            ([3, 500], [12, 2], 7),
            ([20, 21], [4, 4], 5),
            ([33, 30], [4, 6], 7),
        ],
    );
    // Of `SmolVLMImageProcessor` with a longest edge of 44 pixels.
    assert_tiles(
        "vision-smolvlm",
        &[
            ([21, 10], [4, 6], 7),
            ([75, 49], [4, 6], 7),
            ([1, 1], [6, 6], 10),
            ([16, 16], [6, 6], 10),
            ([400, 10], [2, 6], 4),
            ([3, 500], [6, 2], 4),
            ([4000, 3000], [6, 6], 10),
            ([10, 44], [6, 2], 4),
            ([23, 60], [6, 4], 7),
        ],
    );
    // Seven of them fit where ten would not.
    assert_fewer_tiles("vision-smolvlm", &[(28, 7), (27, 5), (20, 5), (19, 1), (1, 1)]);
}

proptest! {
    #[test]
    fn any_image_is_seen_in_whole_tokens(
        size in [1usize..20_000, 1usize..20_000],
        tokens in 1usize..3000,
        name in prop::sample::select(vec![
            "vision-qwen3_vl",
            "vision-mistral3",
            "vision-gemma3",
            "vision-muse_glimmer",
            "vision-kimi_k25",
            "vision-llama4",
            "vision-internvl",
            "vision-cohere2_vision",
            "vision-aya_vision",
            "vision-smolvlm",
        ]),
    ) {
        let processor = processor(name).with_most_tokens(tokens);
        match processor.seen(size) {
            Ok(seen) => {
                let grid = processor.grid(size).unwrap();
                prop_assert!(seen.iter().all(|side| *side > 0 && side % 8 == 0), "{seen:?}");
                prop_assert_eq!(grid, [seen[1] / 4, seen[0] / 4]);
                prop_assert_eq!(processor.tokens(size).unwrap(), grid[0] * grid[1] / 4);
                // Sides shrink until they fit.
                let fits = ["vision-mistral3", "vision-muse_glimmer", "vision-kimi_k25"].contains(&name);
                prop_assert!(!fits || grid[0] * grid[1] / 4 <= tokens, "{seen:?}");
            }
            Err(Error::ImageAspect { .. }) => {
                prop_assert!(size[0].max(size[1]) > 200 * size[0].min(size[1]));
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
