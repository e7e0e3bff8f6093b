//! What is FLUX.1 Kontext's own.

use super::*;

const NAME: &str = "pipeline-kontext";

#[test]
fn pictures_of_kontext_are_those_of_diffusers() {
    assert_recorded(NAME);
}

#[test]
fn a_picture_is_seen_in_the_nearest_size_of_training() {
    let model = ImageModel::open(&fixture(NAME), None).unwrap();
    let picture = Picture::read(fixture(NAME).join("other.png")).unwrap();
    let by = |references| ImageRequest { references, ..ImageRequest::new("") };
    for (width, height, expected) in [
        (70, 66, [1024, 1024]),
        (75, 66, [1104, 944]),
        (30, 90, [672, 1568]),
        (1, 1, [1024, 1024]),
        (128, 1, [1568, 672]),
        (640, 481, [1184, 880]),
    ] {
        let picture = picture.resized(width, height, PictureFilter::Lanczos);
        assert_eq!(model.size(&by(vec![picture])).unwrap(), expected);
    }
    // It may do without one.
    assert_eq!(model.size(&by(Vec::new())).unwrap(), [1024; 2]);
    let error = model.size(&by(vec![picture.clone(); 2])).unwrap_err().to_string();
    assert!(error.contains("give one picture, not 2"), "{error}");
    let image = InitialImage { picture, mask: None, strength: None };
    let begun = ImageRequest { image: Some(image), ..by(Vec::new()) };
    let error = model.size(&begun).unwrap_err().to_string();
    assert!(error.contains("neither a strength nor a mask"), "{error}");
}

#[test]
fn kontext_gives_the_same_bits_in_any_budget() {
    let folder = copied(NAME);
    assert_same_bits_in_little(
        folder.path(),
        &by_another(folder.path(), [32, 16]),
        &["text_encoder", "text_encoder_2", "vae_encoder", "transformer", "vae"],
    );
}
