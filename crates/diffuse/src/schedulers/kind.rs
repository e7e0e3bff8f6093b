//! The schedulers that are built in, what users call them, and what models predict for them.

use std::fmt;
use std::str::FromStr;

/// How a picture is freed from noise, step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Denoising diffusion implicit models, without noise added. Song et al. 2020.
    Ddim,
    /// Pseudo numerical methods: a linear multistep method, after Runge-Kutta steps if it is not
    /// told to skip them. Liu et al. 2022.
    Pndm,
    /// Euler's method, without noise added. Karras et al. 2022.
    Euler,
    /// Euler's method with noise added at each step.
    EulerAncestral,
    /// DPM-Solver++ of first or second order, multistep. Lu et al. 2022.
    DpmSolver,
    /// Euler's method along the straight paths of flow matching. Lipman et al. 2022, Esser et
    /// al. 2024.
    FlowMatchEuler,
    /// Steps of a latent consistency model. Luo et al. 2023.
    Lcm,
    /// Steps of a trajectory consistency model, without noise added. Zheng et al. 2024.
    Tcd,
}

impl SchedulerKind {
    pub(super) const ALL: [Self; 8] = [
        Self::Ddim,
        Self::Pndm,
        Self::Euler,
        Self::EulerAncestral,
        Self::DpmSolver,
        Self::FlowMatchEuler,
        Self::Lcm,
        Self::Tcd,
    ];

    /// What diffusers calls the class.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Ddim => "DDIMScheduler",
            Self::Pndm => "PNDMScheduler",
            Self::Euler => "EulerDiscreteScheduler",
            Self::EulerAncestral => "EulerAncestralDiscreteScheduler",
            Self::DpmSolver => "DPMSolverMultistepScheduler",
            Self::FlowMatchEuler => "FlowMatchEulerDiscreteScheduler",
            Self::Lcm => "LCMScheduler",
            Self::Tcd => "TCDScheduler",
        }
    }

    /// Whether it is for models that were trained by flow matching, and for no others.
    pub fn is_flow_match(self) -> bool {
        self == Self::FlowMatchEuler
    }

    /// Whether it is for models that were taught to make a picture in a few steps.
    pub(super) fn is_consistency(self) -> bool {
        matches!(self, Self::Lcm | Self::Tcd)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ddim => "ddim",
            Self::Pndm => "pndm",
            Self::Euler => "euler",
            Self::EulerAncestral => "euler-a",
            Self::DpmSolver => "dpm++",
            Self::FlowMatchEuler => "flow-euler",
            Self::Lcm => "lcm",
            Self::Tcd => "tcd",
        }
    }

    /// Fields that change the result in a way that is not built in, with the values that do not.
    pub(super) fn only(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Ddim | Self::Lcm => &[("thresholding", &["false"])],
            Self::Pndm | Self::EulerAncestral | Self::Tcd => &[],
            Self::Euler => &[
                ("interpolation_type", &["\"linear\""]),
                ("timestep_type", &["\"discrete\""]),
                ("use_beta_sigmas", &["false"]),
            ],
            Self::DpmSolver => &[
                ("algorithm_type", &["\"dpmsolver++\"", "\"deis\""]),
                ("solver_type", &["\"midpoint\"", "\"heun\"", "\"logrho\"", "\"bh1\"", "\"bh2\""]),
                ("thresholding", &["false"]),
                ("use_beta_sigmas", &["false"]),
                ("use_dynamic_shifting", &["false"]),
                ("use_flow_sigmas", &["false"]),
                ("use_lu_lambdas", &["false"]),
                // Whether a model also predicts a variance, which none built in does; others mean
                // nothing to this one.
                (
                    "variance_type",
                    &[
                        "\"fixed_small\"",
                        "\"fixed_small_log\"",
                        "\"fixed_large\"",
                        "\"fixed_large_log\"",
                    ],
                ),
            ],
            Self::FlowMatchEuler => &[
                ("invert_sigmas", &["false"]),
                ("stochastic_sampling", &["false"]),
                ("use_beta_sigmas", &["false"]),
            ],
        }
    }

    pub(super) fn predictions(self) -> &'static [PredictionType] {
        match self {
            Self::Pndm | Self::EulerAncestral => {
                &[PredictionType::Epsilon, PredictionType::Velocity]
            }
            Self::FlowMatchEuler => &[PredictionType::Velocity],
            _ => &[PredictionType::Epsilon, PredictionType::Velocity, PredictionType::Sample],
        }
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A scheduler by its short name, as a user asks for one instead of the checkpoint's own: `ddim`,
/// `pndm`, `euler`, `euler-a`, `dpm++`, `lcm`, `tcd`, `flow-euler`; with `-karras` or `-trailing`
/// behind it where the steps are to be others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerChoice {
    /// Which method.
    pub kind: SchedulerKind,
    /// Which steps, whatever the checkpoint says.
    pub steps: Option<ChosenSteps>,
}

/// Steps that a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChosenSteps {
    /// With the noise levels of Karras et al. 2022.
    Karras,
    /// From the last timestep of training on, as models ask for that make a picture in a few steps.
    Trailing,
}

impl ChosenSteps {
    const ALL: [Self; 2] = [Self::Karras, Self::Trailing];

    fn suffix(self) -> &'static str {
        match self {
            Self::Karras => "-karras",
            Self::Trailing => "-trailing",
        }
    }

    /// Whether a scheduler can have them.
    fn fit(self, kind: SchedulerKind) -> bool {
        use SchedulerKind::{Ddim, DpmSolver, Euler, EulerAncestral, FlowMatchEuler, Pndm};
        match self {
            Self::Karras => matches!(kind, Euler | DpmSolver | FlowMatchEuler),
            Self::Trailing => matches!(kind, Ddim | Pndm | Euler | EulerAncestral | DpmSolver),
        }
    }
}

impl SchedulerChoice {
    fn all() -> impl Iterator<Item = Self> {
        SchedulerKind::ALL.into_iter().flat_map(|kind| {
            let steps = ChosenSteps::ALL.into_iter().filter(move |steps| steps.fit(kind));
            [None].into_iter().chain(steps.map(Some)).map(move |steps| Self { kind, steps })
        })
    }
}

impl FromStr for SchedulerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|choice| choice.to_string() == text).ok_or_else(|| {
            let names: Vec<_> = Self::all().map(|choice| choice.to_string()).collect();
            format!("expected one of {}, not {text:?}", names.join(", "))
        })
    }
}

impl fmt::Display for SchedulerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.name(), self.steps.map_or("", ChosenSteps::suffix))
    }
}

/// What a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictionType {
    /// The noise.
    Epsilon,
    /// A mixture of noise and picture, `v`. Salimans and Ho 2022. Of flow matching, noise less
    /// picture.
    Velocity,
    /// The picture.
    Sample,
}

impl PredictionType {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Epsilon => "epsilon",
            Self::Velocity => "v_prediction",
            Self::Sample => "sample",
        }
    }

    /// The picture and the noise of a sample, of which there is so much of either, by a model's
    /// output.
    pub(super) fn picture_and_noise(
        self,
        output: f32,
        sample: f32,
        (signal, noise): (f32, f32),
    ) -> (f32, f32) {
        match self {
            Self::Epsilon => ((sample - noise * output) / signal, output),
            Self::Sample => (output, (sample - signal * output) / noise),
            Self::Velocity => (signal * sample - noise * output, signal * output + noise * sample),
        }
    }
}
