//! Which GPUs Burn can compute on.

use std::sync::OnceLock;

use burn::tensor::{DType, Device};

/// The variable that lets a software adapter, such as SwiftShader or lavapipe, serve as a GPU: set
/// to `1`, or to `2` for two devices on the same adapter. It is for tests: a processor computes
/// faster by itself. In builds with the feature `wgpu-noop`, `noop` puts a device that computes
/// nothing in the place of all others.
pub const SOFTWARE_VARIABLE: &str = "OUTSIZE_SOFTWARE_GPU";

/// The backends for GPUs that this build has, by their features' names.
pub const BACKENDS: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "rocm")]
    "rocm",
    #[cfg(feature = "metal")]
    "metal",
    #[cfg(feature = "vulkan")]
    "vulkan",
    #[cfg(feature = "wgpu")]
    "wgpu",
];

/// A GPU that Burn can compute on.
#[derive(Debug, Clone)]
pub struct GpuDevice {
    /// Its number: `gpu0` has 0.
    pub number: usize,
    /// Its name, as its driver gives it.
    pub name: String,
    /// The backend that computes on it, one of [`BACKENDS`].
    pub backend: &'static str,
    /// What tensors on it are made with.
    pub device: Device,
    /// Bytes of its memory, if the backend knows.
    pub memory: Option<u64>,
    /// The bytes of its largest buffer.
    pub largest_buffer: u64,
    /// Whether it is a processor that acts as one.
    pub is_software: bool,
    /// 16-bit types that it can hold tensors in.
    pub holds: Vec<&'static str>,
    /// 16-bit types that it can compute in.
    pub computes: Vec<&'static str>,
}

/// The GPUs that Burn can compute on, each once, in the order of their numbers: NVIDIA's first,
/// then by their addresses on the bus. The first call opens all of them.
pub fn gpus() -> &'static [GpuDevice] {
    static FOUND: OnceLock<Vec<GpuDevice>> = OnceLock::new();
    FOUND.get_or_init(find)
}

/// Whether a device computes in a type: a GPU says so itself, anything else computes in all of
/// them. What a GPU only holds is not to be relied on: through Vulkan an H200 holds bf16, and what
/// it attends to in a KV cache of it is wrong.
pub fn can_compute(device: &Device, dtype: DType) -> bool {
    #[cfg(feature = "gpu")]
    if let burn::backend::DispatchDevice::Cube(cube) = device.as_dispatch() {
        use burn::backend::{Backend, Cube, DTypeUsage};
        let usage = Cube::dtype_usage(cube, dtype);
        return [DTypeUsage::Storage, DTypeUsage::Arithmetic]
            .into_iter()
            .all(|one| usage.contains(one));
    }
    let _ = (device, dtype);
    true
}

#[cfg(not(feature = "gpu"))]
fn find() -> Vec<GpuDevice> {
    Vec::new()
}

#[cfg(feature = "gpu")]
fn find() -> Vec<GpuDevice> {
    #[cfg(feature = "wgpu-noop")]
    if std::env::var(SOFTWARE_VARIABLE).is_ok_and(|value| value == "noop") {
        return search::candidate("wgpu", super::noop::open())
            .into_iter()
            .map(|it| it.gpu)
            .collect();
    }
    let mut found: Vec<search::Candidate> = Vec::new();
    for (backend, kind) in search::kinds() {
        for device in Device::enumerate(kind).into_vec() {
            let candidate = search::candidate(backend, device);
            found.extend(candidate.filter(|new| !found.iter().any(|old| old.is_same_card(new))));
        }
    }
    let twin = found.iter().find_map(search::Candidate::twin);
    found.extend(twin);
    found.sort_by_key(search::Candidate::order);
    let numbered = found.into_iter().enumerate();
    numbered.map(|(number, found)| GpuDevice { number, ..found.gpu }).collect()
}

#[cfg(feature = "gpu")]
mod search {
    use burn::backend::{Backend, Cube, DTypeUsage, DispatchDevice};
    use burn::tensor::{DType, Device, DeviceType};
    use burn_cubecl::CubeDevice;
    use burn_cubecl::cubecl::device::{WgpuBackend, WgpuDeviceKind};
    use burn_cubecl::cubecl::ir::{PciAddress, PciVendor, PhysicalDevice};

    use super::{GpuDevice, SOFTWARE_VARIABLE};

    /// A GPU without a number.
    pub(super) struct Candidate {
        pub(super) gpu: GpuDevice,
        physical: Option<PhysicalDevice>,
    }

    /// The backends of this build, the one to prefer for a card first.
    pub(super) fn kinds() -> Vec<(&'static str, DeviceType)> {
        vec![
            #[cfg(feature = "cuda")]
            ("cuda", DeviceType::Cuda),
            #[cfg(feature = "rocm")]
            ("rocm", DeviceType::Rocm),
            #[cfg(feature = "metal")]
            ("metal", DeviceType::Metal),
            #[cfg(feature = "vulkan")]
            ("vulkan", DeviceType::Vulkan),
            #[cfg(feature = "wgpu")]
            ("wgpu", DeviceType::Wgpu),
        ]
    }

    /// How many devices a software adapter serves as.
    pub(super) fn software() -> usize {
        let value = std::env::var(SOFTWARE_VARIABLE).unwrap_or_default();
        ["1", "2"].iter().position(|one| *one == value).map_or(0, |at| at + 1)
    }

    pub(super) fn candidate(backend: &'static str, device: Device) -> Option<Candidate> {
        let DispatchDevice::Cube(cube) = device.as_dispatch().clone() else { return None };
        let is_software =
            matches!(&cube, CubeDevice::Wgpu(wgpu) if wgpu.kind == WgpuDeviceKind::Cpu);
        if is_software && software() == 0 {
            return None;
        }
        #[cfg(any(feature = "vulkan", feature = "metal", feature = "wgpu"))]
        crate::gpu::staging::open(&device);
        let client = cube.client();
        let (identity, memory) = (&client.properties().identity, &client.properties().memory);
        let types = [("bf16", DType::BF16), ("f16", DType::F16)];
        let able = |usage: DTypeUsage| {
            let able =
                types.iter().filter(|(_, dtype)| Cube::dtype_usage(&cube, *dtype).contains(usage));
            able.map(|(name, _)| *name).collect()
        };
        let gpu = GpuDevice {
            number: 0,
            name: identity.name.clone(),
            backend,
            memory: memory.max_memory(),
            largest_buffer: memory.max_page_size,
            is_software,
            holds: able(DTypeUsage::Storage),
            computes: able(DTypeUsage::Arithmetic),
            device,
        };
        Some(Candidate { gpu, physical: identity.physical.clone() })
    }

    impl Candidate {
        pub(super) fn is_same_card(&self, other: &Self) -> bool {
            let pair = self.physical.as_ref().zip(other.physical.as_ref());
            pair.is_some_and(|(one, other)| one.is_same_card(other))
        }

        /// The same software adapter as another device, if two are asked for: through Vulkan by
        /// name.
        pub(super) fn twin(&self) -> Option<Self> {
            match self.gpu.device.as_dispatch() {
                DispatchDevice::Cube(CubeDevice::Wgpu(wgpu))
                    if self.gpu.is_software && software() == 2 =>
                {
                    let other = CubeDevice::Wgpu(wgpu.clone().on(WgpuBackend::Vulkan));
                    candidate(self.gpu.backend, Device::new(DispatchDevice::Cube(other)))
                }
                _ => None,
            }
        }

        /// NVIDIA's before others, as in what NVML and the system list; those without an address
        /// last.
        pub(super) fn order(&self) -> (bool, bool, Option<PciAddress>) {
            let physical = self.physical.as_ref();
            let address = physical.and_then(|card| card.pci_address);
            let is_nvidia = physical.is_some_and(|card| card.vendor == Some(PciVendor::Nvidia));
            (!is_nvidia, address.is_none(), address)
        }
    }
}
