//! `scheduler_config.json`, as diffusers reads it.

use std::path::Path;

use outsize_checkpoint::{ConfigFileError, shown};
use outsize_models::Fields;
use serde_json::Value;

use super::flow_match::FlowMatchConfig;
use super::kind::{ChosenSteps, PredictionType, SchedulerChoice, SchedulerKind};
use super::noise_schedule::Betas;
use super::sigma_spacing::SigmaSpacing;
use crate::error::Error;

/// The most timesteps that a model may be trained with.
const MAX_TIMESTEPS: usize = 1_000_000;

/// How timesteps are spread over those of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    Leading,
    Linspace,
    Trailing,
}

/// A `scheduler_config.json`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    /// Which method.
    pub kind: SchedulerKind,
    /// What the model predicts.
    pub prediction: PredictionType,
    pub(crate) train_timesteps: usize,
    pub(crate) betas: Betas,
    pub(crate) zero_snr: bool,
    pub(crate) spacing: Spacing,
    pub(crate) steps_offset: usize,
    /// What a predicted picture is clipped to, on both sides of zero.
    pub(crate) clip: Option<f32>,
    pub(crate) alpha_to_one: bool,
    pub(crate) skip_prk_steps: bool,
    pub(crate) sigma_spacing: SigmaSpacing,
    pub(crate) sigma_range: [Option<f64>; 2],
    /// The last noise level is the least of training instead of zero.
    pub(crate) ends_at_sigma_min: bool,
    pub(crate) solver_order: usize,
    pub(crate) heun: bool,
    pub(crate) lower_order_final: bool,
    pub(crate) euler_at_final: bool,
    pub(crate) lambda_min: f64,
    /// Steps that a consistency model was taught to go, of which some are gone.
    pub(crate) taught_steps: usize,
    /// How many of these there are from the noise to begin with on.
    pub(crate) begun_steps: usize,
    /// See `Consistency`.
    pub(crate) timestep_scaling: f64,
    /// Of flow matching, to which most of the others mean nothing.
    pub(crate) flow: FlowMatchConfig,
}

impl SchedulerConfig {
    /// Reads the text of the file at `path`, which messages name. With a `choice`, its fields are
    /// read as diffusers' `from_config` of that class does: what the class does not know is passed
    /// over, what is absent has the class's default.
    ///
    /// # Errors
    /// Text that is not a JSON object; a class, or a field's value, that is not built in.
    pub fn from_json(
        path: &Path,
        text: &str,
        choice: Option<SchedulerChoice>,
    ) -> Result<Self, Error> {
        let parsed = serde_json::from_str(text)
            // Python writes the default of `lambda_min_clipped` so.
            .or_else(|error| {
                serde_json::from_str(&text.replace("-Infinity", "null")).map_err(|_| error)
            });
        let object = match parsed {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(ConfigFileError::not_json(path, "it is not an object").into()),
            Err(error) => return Err(ConfigFileError::not_json(path, error).into()),
        };
        Self::read(&Fields::new(&object), choice).map_err(|error| Error::field(path, error))
    }

    fn read(
        fields: &Fields<'_>,
        choice: Option<SchedulerChoice>,
    ) -> Result<Self, outsize_models::Error> {
        let kind = match choice {
            Some(choice) => chosen(fields, choice.kind)?,
            None => class(fields)?,
        };
        for (field, values) in kind.only() {
            check(fields, field, values)?;
        }
        let train_timesteps = fields.size_or("num_train_timesteps", 1000, MAX_TIMESTEPS)?;
        let (ddim, dpm) = (kind == SchedulerKind::Ddim, kind == SchedulerKind::DpmSolver);
        let flow = kind.is_flow_match();
        let has_sigmas = dpm || kind == SchedulerKind::Euler;
        let ancestral = kind == SchedulerKind::EulerAncestral;
        let (consistency, lcm) = (kind.is_consistency(), kind == SchedulerKind::Lcm);
        let flag = |of_kind: bool, field, default| match of_kind {
            true => fields.flag_or(field, default),
            false => Ok(default),
        };
        let clip = flag(ddim || lcm, "clip_sample", ddim)?;
        let steps = choice.and_then(|choice| choice.steps);
        let karras = steps == Some(ChosenSteps::Karras);
        let levels = [
            karras || flag(has_sigmas || flow, "use_karras_sigmas", false)?,
            flag((has_sigmas || flow) && !karras, "use_exponential_sigmas", false)?,
        ];
        let taught_steps = match consistency {
            true => {
                let most = train_timesteps.max(1);
                fields.size_or("original_inference_steps", 50.min(most), most)?.max(1)
            }
            false => 1,
        };
        let sigma = |field| match has_sigmas && fields.get(field).is_some() {
            true => fields.number_within(field, f64::from(f32::MIN_POSITIVE), 1e6).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            kind,
            prediction: pick(
                fields,
                "prediction_type",
                kind.predictions(),
                PredictionType::name,
                kind.predictions()[0],
            )?,
            train_timesteps,
            betas: betas(fields, train_timesteps, consistency)?,
            zero_snr: flag(kind != SchedulerKind::Pndm, "rescale_betas_zero_snr", false)?,
            spacing: match steps {
                Some(ChosenSteps::Trailing) => Spacing::Trailing,
                _ => pick(
                    fields,
                    "timestep_spacing",
                    &[Spacing::Leading, Spacing::Linspace, Spacing::Trailing],
                    |spacing| match spacing {
                        Spacing::Leading => "leading",
                        Spacing::Linspace => "linspace",
                        Spacing::Trailing => "trailing",
                    },
                    if has_sigmas || ancestral { Spacing::Linspace } else { Spacing::Leading },
                )?,
            },
            steps_offset: match fields.get("steps_offset").map(Value::as_u64) {
                // Their timesteps are those that the model was taught.
                _ if consistency => 1,
                None | Some(Some(0)) => 0,
                Some(_) => fields.size("steps_offset", MAX_TIMESTEPS)?,
            },
            clip: match clip {
                true => Some(match fields.get("clip_sample_range") {
                    Some(_) => fields.number_within("clip_sample_range", 0.0, 1e6)? as f32,
                    None => 1.0,
                }),
                false => None,
            },
            alpha_to_one: flag(!(has_sigmas || ancestral), "set_alpha_to_one", ddim)?,
            skip_prk_steps: flag(kind == SchedulerKind::Pndm, "skip_prk_steps", false)?,
            sigma_spacing: match levels {
                [true, true] => {
                    let only = "only one of it and `use_karras_sigmas` can be true".to_owned();
                    return Err(fields.refuse("use_exponential_sigmas", only));
                }
                [true, false] => SigmaSpacing::Karras,
                [false, true] => SigmaSpacing::Exponential,
                [false, false] => SigmaSpacing::Timesteps,
            },
            // DPM-Solver++ knows no such fields.
            sigma_range: match dpm {
                true => [None, None],
                false => [sigma("sigma_min")?, sigma("sigma_max")?],
            },
            ends_at_sigma_min: has_sigmas
                && pick(
                    fields,
                    "final_sigmas_type",
                    &[false, true],
                    |least| if least { "sigma_min" } else { "zero" },
                    false,
                )?,
            solver_order: if dpm { fields.size_or("solver_order", 2, 2)? } else { 1 },
            heun: dpm && fields.text("solver_type")? == Some("heun"),
            lower_order_final: flag(dpm, "lower_order_final", true)?,
            euler_at_final: flag(dpm, "euler_at_final", false)?,
            lambda_min: match dpm && fields.get("lambda_min_clipped").is_some() {
                true => fields.number("lambda_min_clipped")?,
                false => f64::NEG_INFINITY,
            },
            taught_steps,
            begun_steps: taught_steps,
            timestep_scaling: match lcm && fields.get("timestep_scaling").is_some() {
                true => fields.number_within("timestep_scaling", 0.0, 1e6)?,
                false => 10.0,
            },
            flow: if flow { FlowMatchConfig::read(fields)? } else { FlowMatchConfig::default() },
        })
    }

    /// The configuration as diffusers' pipeline of FLUX.1 runs it: from noise levels that are as
    /// far from each other, shifted for pictures of so many tokens if it shifts by their number.
    ///
    /// # Errors
    /// [`Error::Scheduler`]: it is not one of flow matching.
    pub fn for_flux(&mut self, image_tokens: usize) -> Result<(), Error> {
        self.check_flow_match()?;
        self.flow = self.flow.clone().even().with_image_tokens(image_tokens);
        Ok(())
    }

    /// The configuration as diffusers' pipeline of FLUX.2 klein runs it: from even noise levels,
    /// shifted for pictures of so many tokens and for so many steps, if it shifts by anything.
    ///
    /// # Errors
    /// [`Error::Scheduler`]: it is not one of flow matching.
    pub fn for_flux2(&mut self, image_tokens: usize, steps: usize) -> Result<(), Error> {
        self.check_flow_match()?;
        self.flow = self.flow.clone().even().with_fitted_shift(image_tokens, steps);
        Ok(())
    }

    /// The configuration as diffusers' pipeline of Stable Diffusion 3 runs it: from noise levels of
    /// the timesteps of training, shifted for pictures of so many tokens if it shifts by their
    /// number.
    ///
    /// # Errors
    /// [`Error::Scheduler`]: it is not one of flow matching.
    pub fn for_stable_diffusion_3(&mut self, image_tokens: usize) -> Result<(), Error> {
        self.check_flow_match()?;
        self.flow = self.flow.clone().with_image_tokens(image_tokens);
        Ok(())
    }

    /// The configuration as diffusers' pipeline of latent consistency runs it from a picture to
    /// begin with: all steps go from as much noise as `strength` says, from 0 to 1. Whether it is
    /// one that can be run so.
    pub fn begin_at(&mut self, strength: f64) -> bool {
        self.begun_steps = (self.taught_steps as f64 * strength).floor() as usize;
        self.kind.is_consistency()
    }

    fn check_flow_match(&self) -> Result<(), Error> {
        match self.kind.is_flow_match() {
            true => Ok(()),
            false => Err(Error::Scheduler { class: self.kind.class_name() }),
        }
    }

    /// The configuration as diffusers' pipeline of Stable Diffusion runs it: with an offset of one
    /// timestep, and without clipping, whatever old files say. Returns the names of the fields that
    /// are changed.
    pub fn for_stable_diffusion(&mut self) -> Vec<&'static str> {
        let mut changed = Vec::new();
        if self.steps_offset != 1 {
            self.steps_offset = 1;
            changed.push("steps_offset");
        }
        if self.clip.take().is_some() {
            changed.push("clip_sample");
        }
        changed
    }
}

/// The kind that was asked for, if a model of the file's scheduler can be run by it: flow matching
/// and noise of a variance that is preserved are trained for different paths.
fn chosen(
    fields: &Fields<'_>,
    kind: SchedulerKind,
) -> Result<SchedulerKind, outsize_models::Error> {
    let is_flow = fields.text("_class_name")?.is_some_and(|name| name.starts_with("FlowMatch"));
    match (is_flow, kind.is_flow_match()) {
        (true, false) => Err(fields.refuse(
            "_class_name",
            format!("{kind} is for models that predict noise: choose none, or flow-euler"),
        )),
        (false, true) => Err(fields.refuse(
            "_class_name",
            format!("{kind} is for models that were trained by flow matching: choose another one"),
        )),
        _ => Ok(kind),
    }
}

fn class(fields: &Fields<'_>) -> Result<SchedulerKind, outsize_models::Error> {
    let name = fields.text("_class_name")?.ok_or_else(|| fields.missing("_class_name"))?;
    let found = SchedulerKind::ALL.into_iter().find(|kind| kind.class_name() == name);
    found.ok_or_else(|| {
        let names: Vec<_> = SchedulerKind::ALL.map(SchedulerKind::class_name).into();
        fields.refuse(
            "_class_name",
            format!("only {} are built in: choose one of them instead", names.join(", ")),
        )
    })
}

/// `latent`: what is not said is what models of latents have.
fn betas(fields: &Fields<'_>, steps: usize, latent: bool) -> Result<Betas, outsize_models::Error> {
    if let Some(value) = fields.get("trained_betas") {
        let betas: Option<Vec<f32>> = value.as_array().and_then(|values| {
            let beta = |value: &Value| value.as_f64().filter(|beta| (0.0..=1.0).contains(beta));
            values.iter().map(|value| beta(value).map(|beta| beta as f32)).collect()
        });
        return betas.filter(|betas| betas.len() == steps).map(Betas::Trained).ok_or_else(|| {
            fields.refuse("trained_betas", format!("it must be {steps} numbers from 0 to 1"))
        });
    }
    let limit = |field, default| match fields.get(field) {
        Some(_) => fields.number_within(field, 0.0, 1.0),
        None => Ok(default),
    };
    let [start, end] = if latent { [0.00085, 0.012] } else { [0.0001, 0.02] };
    let (start, end) = (limit("beta_start", start)?, limit("beta_end", end)?);
    pick(
        fields,
        "beta_schedule",
        &[Betas::Linear(start, end), Betas::ScaledLinear(start, end), Betas::SquaredCosine],
        |betas| match betas {
            Betas::ScaledLinear(..) => "scaled_linear",
            Betas::SquaredCosine => "squaredcos_cap_v2",
            _ => "linear",
        },
        if latent { Betas::ScaledLinear(start, end) } else { Betas::Linear(start, end) },
    )
}

/// Refuses a value that is not one of `values`, which are JSON.
fn check(fields: &Fields<'_>, field: &str, values: &[&str]) -> Result<(), outsize_models::Error> {
    match fields.get(field) {
        Some(value) if !values.contains(&value.to_string().as_str()) => {
            let expected = match values {
                [] => "schedulers that set it are not built in".to_owned(),
                values => format!("only {} is built in", values.join(" or ")),
            };
            Err(fields.refuse(field, expected))
        }
        _ => Ok(()),
    }
}

/// Which of `all` a field names.
fn pick<T: Clone>(
    fields: &Fields<'_>,
    field: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    default: T,
) -> Result<T, outsize_models::Error> {
    let Some(text) = fields.text(field)? else {
        return Ok(default);
    };
    all.iter().find(|one| name((*one).clone()) == text).cloned().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|one| shown(name(one.clone()), 80)).collect();
        fields.refuse(field, format!("only these are built in: {}", names.join(", ")))
    })
}
