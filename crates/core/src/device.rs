//! The devices that a map's tiers are.

use crate::Error;
use burn::tensor::Device;
use outsize_kernels::gpu::{BACKENDS, GpuDevice, gpus};
use outsize_plan::{DeviceMap, Tier};
use std::collections::BTreeMap;

/// The GPUs that a device map uses, by their numbers.
#[derive(Debug, Clone, Default)]
pub struct Devices(BTreeMap<usize, Device>);

/// The GPU of this number, in the order of `outsize env`: what a module is initialised on that is
/// to compute there.
///
/// # Errors
/// [`Error::NotBuilt`] and [`Error::NoGpu`].
pub fn gpu(number: usize) -> Result<&'static GpuDevice, Error> {
    let tier = Tier::Gpu(number);
    if BACKENDS.is_empty() {
        return Err(Error::NotBuilt { tier });
    }
    let name = |gpu: &GpuDevice| format!("gpu{} ({}, {})", gpu.number, gpu.name, gpu.backend);
    let found = || gpus().iter().map(name).collect();
    gpus().get(number).ok_or_else(|| Error::NoGpu { tier, found: found() })
}

impl Devices {
    /// Those of a map. Without GPUs in it, none is looked for.
    ///
    /// # Errors
    /// As [`gpu`].
    pub fn of_map(map: &DeviceMap) -> Result<Self, Error> {
        let mut devices = BTreeMap::new();
        for held in map.tiers() {
            let tier = held.tier;
            let mut blocks = map.blocks().iter();
            let computes = blocks.any(|it| it.decode_on == tier || it.prefill_on == tier);
            if let Tier::Gpu(number) = tier
                && (held.weights > 0 || computes)
            {
                devices.insert(number, gpu(number)?.device.clone());
            }
        }
        Ok(Self(devices))
    }

    /// What computes on a tier: its GPU, else the processors.
    pub fn of(&self, tier: Tier) -> Device {
        let gpu = match tier {
            Tier::Gpu(number) => self.0.get(&number).cloned(),
            Tier::Cpu | Tier::Disk => None,
        };
        gpu.unwrap_or_else(Device::flex)
    }

    /// The GPUs, with their numbers.
    pub fn gpus(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.0.iter().map(|(number, device)| (*number, device))
    }

    /// What the memory pools of each GPU hold, in bytes: at most as much was in use at once since
    /// they were last cleaned up. Empty for backends that do not tell.
    pub fn memory_held(&self) -> BTreeMap<Tier, u64> {
        let held = |(number, device): (&usize, &Device)| {
            let usage = device.memory_pool_usage()?;
            Some((Tier::Gpu(*number), usage.bytes_reserved))
        };
        self.0.iter().filter_map(held).collect()
    }
}
