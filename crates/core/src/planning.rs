//! How places are chosen.

use crate::account::many_parameters_bytes;
use crate::{Error, Options};
use outsize_kernels::gpu::UPLOAD_BYTES;
use outsize_plan::{DeviceMap, Tier, Tree, from_assignment, infer};

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
        let gpus = options.budget.iter().filter(|(tier, _)| matches!(tier, Tier::Gpu(_))).count();
        let more = many_parameters_bytes(tree).saturating_add(gpus as u64 * UPLOAD_BYTES);
        plan.needs.process = plan.needs.process.saturating_add(more);
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
