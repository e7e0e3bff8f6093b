//! How places are chosen.

use crate::account::many_parameters_bytes;
use crate::{Error, Options};
use outsize_plan::{DeviceMap, Tree, from_assignment, infer};

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
    let mut plan = plan.clone();
    if plan.needs.process > 0 {
        plan.needs.process = plan.needs.process.saturating_add(many_parameters_bytes(tree));
    }
    let plan = &plan;
    Ok(match &options.planning.device_map {
        None => infer(tree, &options.budget, plan)?,
        Some(map) => {
            let assignment = map.assign(tree, &options.budget, plan)?;
            from_assignment(tree, &assignment, &options.budget, plan)?
        }
    })
}
