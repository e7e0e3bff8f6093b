//! How places are chosen.

use crate::{Error, Options};
use outsize_plan::{
    DeviceMap, HardwareProfile, ManualMap, Strategy, Tree, Workload, from_assignment, infer,
};

/// How places are chosen within the budget.
#[derive(Debug, Clone, Default)]
pub struct Planning {
    /// By which rule.
    pub strategy: Strategy,
    /// Somebody's own choice instead.
    pub device_map: Option<ManualMap>,
    /// Bytes that are left free on every device.
    pub reserve_bytes: u64,
    /// Whether it is an error if anything would be streamed from disk.
    pub must_fit: bool,
    /// How fast the machine is.
    pub figures: HardwareProfile,
    /// For what the speed is predicted.
    pub workload: Workload,
}

/// Where each tensor of `tree` lives, as the options say.
///
/// # Errors
/// As [`infer`]; and for a device map of somebody's own, what is wrong with it.
pub fn decide(tree: &Tree, options: &Options) -> Result<DeviceMap, Error> {
    decide_with(tree, options, &options.plan())
}

pub(crate) fn decide_with(
    tree: &Tree,
    options: &Options,
    plan: &outsize_plan::Options,
) -> Result<DeviceMap, Error> {
    Ok(match &options.planning.device_map {
        None => infer(tree, &options.budget, plan)?,
        Some(map) => {
            let assignment = map.assign(tree, &options.budget, plan)?;
            from_assignment(tree, &assignment, &options.budget, plan)?
        }
    })
}
