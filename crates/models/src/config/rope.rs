//! The rotary embedding's part of a `config.json`, in its old and its new form.

use super::fields::Fields;
use super::known::{self, Effect, KnownField};
use crate::Error;

/// Of the object of a model that rotates a part of each head.
const PARTIAL: &[KnownField] = &[("partial_rotary_factor", Effect::Read)];

/// Positions beyond this are not exact in f32.
const MAX_ORIGINAL: usize = 1 << 24;

/// The greatest factor that anything is stretched by.
const MAX_FACTOR: f64 = 1e6;

/// Rotary position embedding: base and scaling.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// How frequencies are changed for contexts longer than first trained for.
    pub scaling: RopeScaling,
}

/// How a rotary embedding's frequencies are changed for contexts longer than first trained for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// All wavelengths are stretched by `factor`.
    Linear {
        /// By how much.
        factor: f64,
    },
    /// The base grows with the text's length, once that is beyond the trained context (NTK-aware
    /// scaling).
    Dynamic {
        /// By how much the context is stretched per trained context.
        factor: f64,
        /// The context first trained for, in tokens.
        max_position_embeddings: usize,
    },
    /// As YaRN does ([Peng et al., 2023](https://arxiv.org/abs/2309.00071)): wavelengths are
    /// stretched the more, the fewer times they fit into the trained context.
    Yarn {
        /// By how much the longest wavelengths are stretched.
        factor: f64,
        /// What rotated queries and keys are multiplied with.
        attention_factor: f64,
        /// Waves that fit this often into the trained context are kept.
        beta_fast: f64,
        /// Waves that fit this often into the trained context are stretched in full.
        beta_slow: f64,
        /// The context first trained for, in tokens.
        original_max_position_embeddings: usize,
        /// Whether the ends of the range between are rounded to whole dimensions.
        truncate: bool,
    },
    /// The first pairs of dimensions are rotated, with wavelengths stretched by `factor`, and the
    /// others are not.
    Proportional {
        /// By how much.
        factor: f64,
        /// Pairs that are rotated.
        pairs: usize,
    },
    /// As Llama 3.1 does: long wavelengths are stretched by `factor`, short ones kept, those
    /// between blended.
    Llama3 {
        /// By how much long wavelengths are stretched.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are stretched in
        /// full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context first trained for, in tokens.
        original_max_position_embeddings: usize,
    },
    /// As LongRoPE does ([Ding et al., 2024](https://arxiv.org/abs/2402.13753)): each wavelength is
    /// stretched by a factor of its own, in texts longer than first trained for by another one.
    LongRope {
        /// Of each pair of dimensions, in texts of up to `original_max_position_embeddings` tokens.
        short_factor: Vec<f64>,
        /// Of each pair of dimensions, in longer texts.
        long_factor: Vec<f64>,
        /// What rotated queries and keys are multiplied with.
        attention_factor: f64,
        /// The context first trained for, in tokens.
        original_max_position_embeddings: usize,
    },
}

/// What the scaling depends on beside its own fields.
#[derive(Clone, Copy)]
pub(crate) struct RopeContext<'a> {
    /// The whole file.
    pub fields: &'a Fields<'a>,
    /// Width of a head.
    pub head_dim: usize,
    /// The context trained for, in tokens.
    pub max_position_embeddings: usize,
    /// The base of a file that does not say.
    pub theta: f64,
}

impl RopeConfig {
    /// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).
    ///
    /// Where both forms are present `rope_scaling` wins, and a `rope_theta` within the object wins
    /// over one outside, as in `transformers`.
    pub(crate) fn read(around: &RopeContext<'_>) -> Result<Self, Error> {
        let theta = theta(around.fields, "rope_theta", around.theta)?;
        match rope_object(around.fields)? {
            Some(object) => Self::read_object(&object, around, theta, &[known::ROPE]),
            None => Ok(Self { theta, scaling: RopeScaling::Default }),
        }
    }

    /// The same of a model that rotates a part of each head, with the number of elements that it
    /// rotates. Outside the object base and part are in the fields of those names; the part is
    /// `absent` if no field has it.
    pub(crate) fn read_partial(
        around: &RopeContext<'_>,
        [base, part]: [&'static str; 2],
        absent: f64,
    ) -> Result<(Self, usize), Error> {
        let theta = theta(around.fields, base, around.theta)?;
        let object = rope_object(around.fields)?;
        let (owner, field) = match &object {
            Some(object) if object.get(PARTIAL[0].0).is_some() => (object, PARTIAL[0].0),
            _ => (around.fields, part),
        };
        Self::read_share((owner, field), object.as_ref(), around, theta, absent)
    }

    /// The same of what an object says alone, if there is one.
    pub(crate) fn read_part(
        object: Option<&Fields<'_>>,
        around: &RopeContext<'_>,
        theta: f64,
        absent: f64,
    ) -> Result<(Self, usize), Error> {
        let owner = object.unwrap_or(around.fields);
        Self::read_share((owner, PARTIAL[0].0), object, around, theta, absent)
    }

    /// The same where the part is said in a field.
    fn read_share(
        (owner, field): (&Fields<'_>, &str),
        object: Option<&Fields<'_>>,
        around: &RopeContext<'_>,
        theta: f64,
        absent: f64,
    ) -> Result<(Self, usize), Error> {
        let share = owner.number_within_or(field, absent, 0.0, 1.0)?;
        let width = (around.head_dim as f64 * share) as usize;
        if width == 0 || !width.is_multiple_of(2) {
            let head = around.head_dim;
            let expected = format!("of a head's {head} elements an even number must be rotated");
            return Err(owner.refuse(field, expected));
        }
        let around = RopeContext { head_dim: width, ..*around };
        let rope = match object {
            Some(object) => Self::read_object(object, &around, theta, &[PARTIAL, known::ROPE])?,
            None => Self { theta, scaling: RopeScaling::Default },
        };
        Ok((rope, width))
    }

    /// Why texts cannot slide on beyond their context, if so.
    pub(crate) fn cannot_slide(&self) -> Option<&'static str> {
        match &self.scaling {
            RopeScaling::Dynamic { .. } => Some(
                "its rotary embedding is of the type \"dynamic\", which depends on the text's length",
            ),
            RopeScaling::LongRope { short_factor, long_factor, .. }
                if short_factor == long_factor =>
            {
                None
            }
            RopeScaling::LongRope { .. } => Some(
                "its rotary embedding is of the type \"longrope\", which depends on the text's length",
            ),
            _ => None,
        }
    }

    /// The longest text of which the rotations do not depend on how long it is; none if they never
    /// do.
    pub(crate) fn rescaled_beyond(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::Dynamic { max_position_embeddings, .. } => Some(max_position_embeddings),
            RopeScaling::LongRope { original_max_position_embeddings, .. } => {
                Some(original_max_position_embeddings)
            }
            _ => None,
        }
    }

    /// Reads one object, with the base that it has if it says none.
    pub(crate) fn read_object(
        object: &Fields<'_>,
        around: &RopeContext<'_>,
        theta: f64,
        tables: &[&[KnownField]],
    ) -> Result<Self, Error> {
        known::check(object, tables)?;
        let theta = self::theta(object, "rope_theta", theta)?;
        let field = if object.get("rope_type").is_some() { "rope_type" } else { "type" };
        let scaling = match object.text(field)?.unwrap_or("default") {
            "default" => RopeScaling::Default,
            "linear" => RopeScaling::Linear { factor: factor(object)? },
            "dynamic" => dynamic(object, around)?,
            // The latter as Sarvam was published.
            "yarn" | "deepseek_yarn" => yarn(object, around, theta)?,
            "llama3" => llama3(object, around)?,
            "longrope" | "su" => longrope(object, around)?,
            _ => {
                let expected = "only the types \"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\" and \"longrope\" are supported";
                return Err(object.refuse(field, expected.to_owned()));
            }
        };
        Ok(Self { theta, scaling })
    }
}

/// Refuses what one rotary embedding of all layers is scaled by, where kinds of layers have their
/// own.
pub(crate) fn check_no_rope_scaling(fields: &Fields<'_>) -> Result<(), Error> {
    match fields.get("rope_scaling") {
        None => Ok(()),
        Some(_) => {
            let expected = "it must be in `rope_parameters`, for each kind of layers".to_owned();
            Err(fields.refuse("rope_scaling", expected))
        }
    }
}

/// The object that says how positions are embedded.
pub(crate) fn rope_object<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, Error> {
    match fields.object("rope_scaling")? {
        Some(object) => Ok(Some(object)),
        None => fields.object("rope_parameters"),
    }
}

fn factor(object: &Fields<'_>) -> Result<f64, Error> {
    object.number_within("factor", 1.0, MAX_FACTOR)
}

fn dynamic(object: &Fields<'_>, around: &RopeContext<'_>) -> Result<RopeScaling, Error> {
    let factor = factor(object)?;
    // The exponent is head_dim / (head_dim - 2).
    if around.head_dim <= 2 {
        let expected = "the type \"dynamic\" needs heads wider than 2".to_owned();
        return Err(around.fields.refuse("head_dim", expected));
    }
    Ok(RopeScaling::Dynamic { factor, max_position_embeddings: around.max_position_embeddings })
}

fn yarn(object: &Fields<'_>, around: &RopeContext<'_>, theta: f64) -> Result<RopeScaling, Error> {
    let original_max_position_embeddings = original(object, around)?;
    // Null says: what the context was stretched by.
    let factor = if object.has("factor") && object.get("factor").is_none() {
        let implied =
            around.max_position_embeddings as f64 / original_max_position_embeddings as f64;
        if !(1.0..=MAX_FACTOR).contains(&implied) {
            let expected = format!(
                "without one, max_position_embeddings over original_max_position_embeddings serves, which is {implied} and \
                 must be from 1 to {MAX_FACTOR}"
            );
            return Err(object.refuse("factor", expected));
        }
        implied
    } else {
        factor(object)?
    };
    if theta <= 1.0 {
        let expected = "the type \"yarn\" needs more than 1".to_owned();
        return Err(object.refuse("rope_theta", expected));
    }
    // As in transformers, 0 is as good as absent for all but the attention factor.
    let optional = |field: &str| match object.get(field) {
        None => Ok(None),
        Some(_) => {
            let number = object.number_within(field, 0.0, MAX_FACTOR)?;
            Ok((number != 0.0).then_some(number))
        }
    };
    let scale = |weight| yarn_stretch(factor, weight);
    let (mscale, mscale_all_dim) = (optional("mscale")?, optional("mscale_all_dim")?);
    let attention_factor = match (object.get("attention_factor"), mscale, mscale_all_dim) {
        (Some(_), ..) => object.number_within("attention_factor", 1e-6, MAX_FACTOR)?,
        (None, Some(one), Some(all)) => scale(one) / scale(all),
        (None, ..) => scale(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        attention_factor,
        beta_fast: optional("beta_fast")?.unwrap_or(32.0),
        beta_slow: optional("beta_slow")?.unwrap_or(1.0),
        original_max_position_embeddings,
        // In transformers, null is not the default but false.
        truncate: object.flag_or("truncate", !object.has("truncate"))?,
    })
}

/// What YaRN multiplies rotated queries and keys with, for wavelengths stretched by `factor`.
pub(crate) fn yarn_stretch(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

fn llama3(object: &Fields<'_>, around: &RopeContext<'_>) -> Result<RopeScaling, Error> {
    let factor = factor(object)?;
    let low_freq_factor = object.number_within("low_freq_factor", 1e-6, MAX_FACTOR)?;
    let high_freq_factor = object.number("high_freq_factor")?;
    if !(high_freq_factor >= low_freq_factor && high_freq_factor <= MAX_FACTOR) {
        let expected = format!(
            "it must be at least low_freq_factor, {low_freq_factor}, and at most {MAX_FACTOR}"
        );
        return Err(object.refuse("high_freq_factor", expected));
    }
    Ok(RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: original(object, around)?,
    })
}

fn longrope(object: &Fields<'_>, around: &RopeContext<'_>) -> Result<RopeScaling, Error> {
    let original_max_position_embeddings = original(object, around)?;
    let factors = |field: &str| {
        let values = object.get(field).ok_or_else(|| object.missing(field))?;
        let numbers = values.as_array().map(|values| {
            let number = values.iter().filter_map(serde_json::Value::as_f64);
            number.filter(|factor| (1e-6..=MAX_FACTOR).contains(factor)).collect::<Vec<_>>()
        });
        let pairs = around.head_dim / 2;
        let all = values.as_array().is_some_and(|values| values.len() == pairs);
        numbers.filter(|numbers| all && numbers.len() == pairs).ok_or_else(|| {
            let expected =
                format!("it must be a list of {pairs} numbers from 1e-6 to {MAX_FACTOR}");
            object.refuse(field, expected)
        })
    };
    let (trained, original) =
        (around.max_position_embeddings as f64, original_max_position_embeddings as f64);
    let stretched = match object.get("factor") {
        Some(_) => object.number_within("factor", 1e-6, MAX_FACTOR)?,
        None => trained / original,
    };
    let attention_factor = match object.get("attention_factor") {
        Some(_) => object.number_within("attention_factor", 1e-6, MAX_FACTOR)?,
        None if stretched <= 1.0 => 1.0,
        None if original <= 1.0 => {
            let expected = "without an attention_factor it must be more than 1".to_owned();
            return Err(object.refuse("original_max_position_embeddings", expected));
        }
        None => (1.0 + stretched.ln() / original.ln()).sqrt(),
    };
    Ok(RopeScaling::LongRope {
        short_factor: factors("short_factor")?,
        long_factor: factors("long_factor")?,
        attention_factor,
        original_max_position_embeddings,
    })
}

/// The context first trained for.
fn original(object: &Fields<'_>, around: &RopeContext<'_>) -> Result<usize, Error> {
    // A field of that name outside the object wins, as in transformers.
    let field = "original_max_position_embeddings";
    let owner = if around.fields.get(field).is_some() { around.fields } else { object };
    owner.size_or(field, around.max_position_embeddings.min(MAX_ORIGINAL), MAX_ORIGINAL)
}

/// The base in `field`.
pub(crate) fn theta(fields: &Fields<'_>, field: &str, default: f64) -> Result<f64, Error> {
    let theta = fields.number_or(field, default)?;
    if (1.0..=1e30).contains(&theta) {
        return Ok(theta);
    }
    Err(fields.refuse(field, "it must be from 1 to 1e30".to_owned()))
}
