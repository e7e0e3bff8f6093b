//! The rotary embedding's part of a `config.json`, in its old and its new form.

use super::fields::Fields;
use crate::Error;

/// Positions beyond this are not exact in f32.
const MAX_ORIGINAL: usize = 1 << 24;

/// Rotary position embedding: base and scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// How frequencies are changed for contexts longer than first trained for.
    pub scaling: RopeScaling,
}

/// How a rotary embedding's frequencies are changed for contexts longer than first trained for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// As Llama 3.1 does: long wavelengths are stretched by `factor`, short ones kept, those between blended.
    Llama3 {
        /// By how much long wavelengths are stretched.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context first trained for, in tokens.
        original_max_position_embeddings: usize,
    },
}

impl RopeConfig {
    /// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).
    ///
    /// Where both forms are present `rope_scaling` wins, and a `rope_theta` within the object wins over one outside, as in
    /// `transformers`.
    pub(super) fn read(fields: &Fields<'_>, max_position_embeddings: usize) -> Result<Self, Error> {
        whole_head(fields)?;
        let theta = fields.number_or("rope_theta", 10_000.0)?;
        check_theta(fields, theta)?;
        let scaling = match fields.object("rope_scaling")? {
            Some(object) => Some(object),
            None => fields.object("rope_parameters")?,
        };
        let Some(object) = scaling else {
            return Ok(Self {
                theta,
                scaling: RopeScaling::Default,
            });
        };
        whole_head(&object)?;
        let theta = object.number_or("rope_theta", theta)?;
        check_theta(&object, theta)?;
        let field = if object.get("rope_type").is_some() {
            "rope_type"
        } else {
            "type"
        };
        let scaling = match object.text(field)?.unwrap_or("default") {
            "default" => RopeScaling::Default,
            "llama3" => llama3(&object, fields, max_position_embeddings)?,
            _ => {
                let expected = "only the types \"default\" and \"llama3\" are supported".to_owned();
                return Err(object.refuse(field, expected));
            }
        };
        Ok(Self { theta, scaling })
    }
}

fn llama3(
    object: &Fields<'_>,
    fields: &Fields<'_>,
    max_position_embeddings: usize,
) -> Result<RopeScaling, Error> {
    let factor = object.number("factor")?;
    if !(1.0..=1e6).contains(&factor) {
        return Err(object.refuse("factor", "it must be from 1 to 1000000".to_owned()));
    }
    let low_freq_factor = object.number("low_freq_factor")?;
    if !(1e-6..=1e6).contains(&low_freq_factor) {
        return Err(object.refuse(
            "low_freq_factor",
            "it must be from 0.000001 to 1000000".to_owned(),
        ));
    }
    let high_freq_factor = object.number("high_freq_factor")?;
    if !(high_freq_factor > low_freq_factor && high_freq_factor <= 1e6) {
        let expected =
            format!("it must be above low_freq_factor, {low_freq_factor}, and at most 1000000");
        return Err(object.refuse("high_freq_factor", expected));
    }
    // A field of that name outside the object wins, as in transformers.
    let field = "original_max_position_embeddings";
    let owner = if fields.get(field).is_some() {
        fields
    } else {
        object
    };
    let original_max_position_embeddings = owner.size_or(
        field,
        max_position_embeddings.min(MAX_ORIGINAL),
        MAX_ORIGINAL,
    )?;
    Ok(RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings,
    })
}

fn check_theta(fields: &Fields<'_>, theta: f64) -> Result<(), Error> {
    if (1.0..=1e30).contains(&theta) {
        return Ok(());
    }
    Err(fields.refuse("rope_theta", "it must be from 1 to 1e30".to_owned()))
}

fn whole_head(fields: &Fields<'_>) -> Result<(), Error> {
    if fields.number_or("partial_rotary_factor", 1.0)? == 1.0 {
        return Ok(());
    }
    Err(fields.refuse(
        "partial_rotary_factor",
        "only models that rotate whole heads (1.0) are supported".to_owned(),
    ))
}
