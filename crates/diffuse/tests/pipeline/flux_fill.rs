//! What is FLUX.1 Fill's own.

use super::*;

const NAME: &str = "pipeline-fill";

fn filled(folder: &Path) -> ImageRequest {
    let [picture, mask] =
        ["image.png", "mask.png"].map(|file| Picture::read(folder.join(file)).unwrap());
    let image = InitialImage { picture, mask: Some(mask), strength: None };
    ImageRequest { image: Some(image), steps: Some(2), ..ImageRequest::new("a cat") }
}

#[test]
fn pictures_of_fill_are_those_of_diffusers() {
    assert_recorded(NAME);
}

#[test]
fn fill_does_nothing_without_a_mask() {
    let folder = fixture(NAME);
    let pipeline = open(&folder, "cpu=1GB");
    let model = pipeline.model();
    assert!(model.fills_masks());
    let usual = ImageRequest { steps: None, ..filled(&folder) };
    let asked = (model.steps(&usual), model.guidance_scale(&usual), model.strength(&usual));
    assert_eq!(asked, (50, 30.0, 1.0));
    let refused = |request: &ImageRequest| pipeline.generate(request).unwrap_err().to_string();
    assert!(refused(&ImageRequest::new("a cat")).contains("and a mask"));
    let unmasked = InitialImage { mask: None, ..filled(&folder).image.unwrap() };
    let unmasked = ImageRequest { image: Some(unmasked), ..filled(&folder) };
    assert!(refused(&unmasked).contains("and a mask"));
}

#[test]
fn other_transformers_are_not_those_of_fill() {
    for (name, class) in [(NAME, "FluxPipeline"), ("pipeline-flux", "FluxFillPipeline")] {
        let error = refusal(name, "model_index.json", "_class_name", class.into());
        assert!(error.contains("`in_channels` is"), "{name}: {error}");
    }
}

#[test]
fn fill_gives_the_same_bits_in_any_budget() {
    let folder = copied(NAME);
    assert_same_bits_in_little(
        folder.path(),
        &filled(folder.path()),
        &["text_encoder", "text_encoder_2", "vae_encoder", "transformer", "vae"],
    );
}
