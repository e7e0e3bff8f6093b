//! The schedulers that are built in, what users call them, and what models predict for them.

use std::fmt;
use std::str::FromStr;

/// How a picture is freed from noise, step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Denoising diffusion implicit models, without noise added. Song et al. 2020.
    Ddim,
    /// Pseudo numerical methods: a linear multistep method, after Runge-Kutta steps if it is not told to skip them. Liu et al.
    /// 2022.
    Pndm,
    /// Euler's method, without noise added. Karras et al. 2022.
    Euler,
    /// DPM-Solver++ of first or second order, multistep. Lu et al. 2022.
    DpmSolver,
    /// Euler's method along the straight paths of flow matching. Lipman et al. 2022, Esser et al. 2024.
    FlowMatchEuler,
}

impl SchedulerKind {
    pub(super) const ALL: [Self; 5] =
        [Self::Ddim, Self::Pndm, Self::Euler, Self::DpmSolver, Self::FlowMatchEuler];

    /// What diffusers calls the class.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Ddim => "DDIMScheduler",
            Self::Pndm => "PNDMScheduler",
            Self::Euler => "EulerDiscreteScheduler",
            Self::DpmSolver => "DPMSolverMultistepScheduler",
            Self::FlowMatchEuler => "FlowMatchEulerDiscreteScheduler",
        }
    }

    /// Whether it is for models that were trained by flow matching, and for no others.
    pub fn is_flow_match(self) -> bool {
        self == Self::FlowMatchEuler
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ddim => "ddim",
            Self::Pndm => "pndm",
            Self::Euler => "euler",
            Self::DpmSolver => "dpm++",
            Self::FlowMatchEuler => "flow-euler",
        }
    }

    /// Fields that change the result in a way that is not built in, with the values that do not.
    pub(super) fn only(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Ddim => &[("thresholding", &["false"])],
            Self::Pndm => &[],
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
                // Whether a model also predicts a variance, which none built in does; others mean nothing to this one.
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
            Self::Pndm => &[PredictionType::Epsilon, PredictionType::Velocity],
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

/// A scheduler by its short name, as a user asks for one instead of the checkpoint's own: `ddim`, `pndm`, `euler`, `dpm++`,
/// `flow-euler`; `euler-karras`, `dpm++-karras` and `flow-euler-karras` with the noise levels of Karras et al.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerChoice {
    /// Which method.
    pub kind: SchedulerKind,
    /// With the noise levels of Karras et al., whatever the checkpoint says.
    pub karras: bool,
}

impl FromStr for SchedulerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, karras) = match text.strip_suffix("-karras") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let kind = SchedulerKind::ALL.into_iter().find(|kind| kind.name() == name);
        let has_sigmas = |kind: &SchedulerKind| {
            !karras || !matches!(kind, SchedulerKind::Ddim | SchedulerKind::Pndm)
        };
        kind.filter(has_sigmas).map(|kind| Self { kind, karras }).ok_or_else(|| {
            format!(
                "expected one of ddim, pndm, euler, dpm++, flow-euler, euler-karras, dpm++-karras, \
                 flow-euler-karras, not {text:?}"
            )
        })
    }
}

impl fmt::Display for SchedulerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.name(), if self.karras { "-karras" } else { "" })
    }
}

/// What a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictionType {
    /// The noise.
    Epsilon,
    /// A mixture of noise and picture, `v`. Salimans and Ho 2022. Of flow matching, noise less picture.
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
}
