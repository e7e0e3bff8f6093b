//! A GPU that allocates and copies but computes nothing: wgpu's own, for tests of what models
//! allocate that a processor would take hours to compute.

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::{future, wgpu as runtime};
use wgpu::{Backend, Backends, DeviceDescriptor, DeviceType, Features, Instance, Limits};

/// Opens such a device. Its limits are those of a graphics card: how pools divide memory follows
/// from them.
pub(super) fn open() -> Device {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::NOOP;
    let noop = &mut descriptor.backend_options.noop;
    noop.enable = true;
    noop.device_type = Some(DeviceType::DiscreteGpu);
    noop.features = Some(Features::SUBGROUP);
    noop.limits = Some(Limits {
        max_buffer_size: (2 << 30) - 4,
        max_storage_buffer_binding_size: (2 << 30) - 4,
        max_storage_buffers_per_shader_stage: 32,
        max_compute_workgroup_storage_size: 48 << 10,
        max_compute_invocations_per_workgroup: 1024,
        max_compute_workgroup_size_x: 1024,
        max_compute_workgroup_size_y: 1024,
        ..Limits::defaults()
    });
    (noop.subgroup_min_size, noop.subgroup_max_size) = (Some(32), Some(32));
    let instance = Instance::new(descriptor);
    let setup = future::block_on(async {
        let adapter = instance.request_adapter(&Default::default()).await.expect("it is enabled");
        let wanted = DeviceDescriptor {
            required_features: adapter.features(),
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let (device, queue) = adapter.request_device(&wanted).await.expect("it has all it says");
        runtime::WgpuSetup { instance, adapter, device, queue, backend: Backend::Noop }
    });
    let device = runtime::init_device(setup, runtime::RuntimeOptions::default());
    Device::new(DispatchDevice::Cube(CubeDevice::Wgpu(device)))
}
