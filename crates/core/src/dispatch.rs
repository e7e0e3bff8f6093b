use crate::dispatched::Attached;
use crate::gpu_share::GpuShare;
use crate::load::{Load, load_scales};
use crate::matching::{Matched, match_parameters};
use crate::pass::Pass;
use crate::placeholder::poison;
use crate::registry::{Registry, tile_rows};
use crate::slots::Slots;
use crate::streamed::{Chunks, Inner, Streamed};
use crate::upload::Upload;
use crate::{Devices, Dispatched, Error, Options, parameters, plan};
use burn::module::{Module, Param, Reparameterizer};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_kernels::is_gpu;
use outsize_plan::{DeviceMap, PlacedBlock, Tier};
use outsize_stream::{Source, Stream};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, RwLock};

/// Opens the checkpoint, decides what stays in memory, and attaches the rest: steps 2 to 4 of the
/// [crate]'s table.
///
/// # Errors
/// What is wrong with the checkpoint, how it does not fit the module, or how many bytes of budget
/// would do.
pub fn load_checkpoint_and_dispatch<M: Module>(
    module: M,
    path: impl AsRef<Path>,
    options: &Options,
) -> Result<Dispatched<M>, Error> {
    let checkpoint = Checkpoint::open(path)?;
    let map = plan(&module, &checkpoint, options)?;
    dispatch(module, &checkpoint, &map, options)
}

/// Attaches a handle to every float parameter of `module`, and starts to read in the order of use:
/// what the map keeps in memory stays there once it was read, the rest passes through the ring.
/// Parameters that cannot carry a handle are loaded before this returns.
///
/// # Errors
/// [`Error::NotBuilt`], [`Error::NoGpu`], [`Error::OtherDevice`] and [`Error::Gpu`] for a map that
/// uses GPUs; the rest as [`tree`](crate::tree()); and what reading said for the parameters that
/// are loaded at once.
pub fn dispatch<M: Module>(
    module: M,
    checkpoint: &Checkpoint,
    map: &DeviceMap,
    options: &Options,
) -> Result<Dispatched<M>, Error> {
    let devices = Devices::of_map(map)?;
    let parameters = parameters(&module);
    let matched = match_parameters(&parameters, &checkpoint.into(), options)?;
    load_scales(checkpoint, &matched)?;
    let mut load = Load::new(checkpoint, &matched);
    let module = if load.is_empty() { module } else { module.map(&mut load) };
    load.finish()?;
    let mut attach = Attach::new(checkpoint, &matched, map, &devices, options)?;
    let module = module.apply_reparameterization(&mut attach);
    Ok(Dispatched::new(module, map.clone(), attach.finish()?))
}

/// Memory of each GPU for what passes through it.
fn slots(map: &DeviceMap, devices: &Devices, largest: u64, options: &Options) -> Arc<[Slots]> {
    let of = |(number, device): (usize, &Device)| {
        let tier = Tier::Gpu(number);
        let ring = map.tiers().iter().find(|held| held.tier == tier).map_or(0, |held| held.ring);
        Slots::new(GpuShare::new(number, device, map, options), ring, largest)
    };
    devices.gpus().map(of).collect()
}

/// The bytes of the largest tile, or whole value, that passes through slots.
fn largest_copied(
    matched: &[Matched],
    handles: &HashMap<String, (Chunks, bool)>,
    options: &Options,
) -> u64 {
    let whole = matched.iter().filter_map(|entry| match handles.get(&entry.parameter.path)? {
        (Chunks::Whole(_) | Chunks::Part(..), _) => Some(entry.bytes(entry.stored.as_ref()?)),
        _ => None,
    });
    whole.fold(options.tile_bytes, u64::max)
}

/// Puts a handle on each float parameter that has one, and a placeholder under it.
struct Attach<'a> {
    attached: Attached,
    matched: HashMap<&'a str, &'a Matched<'a>>,
    handles: HashMap<String, (Chunks, bool)>,
    blocks: HashMap<&'a str, &'a PlacedBlock>,
    devices: &'a Devices,
    options: &'a Options,
    upload: Upload,
    /// What went wrong first.
    error: Option<Error>,
}

impl<'a> Attach<'a> {
    fn new(
        checkpoint: &Checkpoint,
        matched: &'a [Matched<'a>],
        map: &'a DeviceMap,
        devices: &'a Devices,
        options: &'a Options,
    ) -> Result<Self, Error> {
        let registry = Registry::new(matched, map, options);
        let sources = || {
            let files = checkpoint.files().iter();
            let source = files
                .map(|file| Source::new(file.path(), file.file().clone()).since(file.opened()));
            source.collect()
        };
        let slots =
            slots(map, devices, largest_copied(matched, &registry.handles, options), options);
        let upload = Upload::new(sources, matched, map, options)?;
        let stream = Stream::new(
            sources(),
            registry.chunks,
            registry.order,
            outsize_stream::Options { ring_bytes: map.ring_bytes(), ..options.stream() },
        )?;
        let pass = Pass::new(options.stop.clone()).into();
        Ok(Self {
            attached: Attached { stream, pass, tape: Arc::default(), slots, matrices: Vec::new() },
            matched: matched.iter().map(|entry| (entry.parameter.path.as_str(), entry)).collect(),
            handles: registry.handles,
            blocks: map.blocks().iter().map(|block| (block.name.as_str(), block)).collect(),
            devices,
            options,
            upload,
            error: None,
        })
    }

    /// Waits until everything is on its GPU, and begins to read.
    fn finish(self) -> Result<Attached, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        drop(self.upload);
        self.attached.slots.iter().try_for_each(Slots::wait)?;
        self.attached.stream.begin()?;
        Ok(self.attached)
    }

    /// Where the parameter's block computes, in prefill and in decode, if that is not where the
    /// module is.
    fn computes(&mut self, entry: &Matched, own: &Device) -> Option<Box<[Device; 2]>> {
        let block = self.blocks.get(entry.parameter.block(&self.options.no_split))?;
        let tiers = [block.prefill_on, block.decode_on];
        let devices = tiers.map(|tier| self.devices.of(tier));
        if !self.options.moves_activations
            && let Some(at) = devices.iter().position(|device| device != own)
            && self.error.is_none()
        {
            let path = entry.parameter.path.clone();
            self.error = Some(Error::OtherDevice { path, tier: tiers[at] });
        }
        devices.iter().any(|device| device != own).then(|| Box::new(devices))
    }
}

impl Reparameterizer for &mut Attach<'_> {
    type Reparam = Streamed;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Streamed>) {
        let (Some((chunks, resident)), Some(entry)) =
            (self.handles.remove(path), self.matched.get(path).copied())
        else {
            return (param, None);
        };
        let Some(stored) = &entry.stored else {
            return (param, None);
        };
        let device = param.lazy_device();
        let computes = self.computes(entry, &device);
        let held = OnceLock::new();
        let value = match self.error {
            None => self.upload.value::<D>(entry, stored, self.devices),
            Some(_) => None,
        };
        if let Some(value) = value {
            match value {
                Ok(value) => _ = held.set(value),
                Err(error) => self.error = Some(error),
            }
        }
        // What a GPU computes is not kept there because it is kept in main memory.
        let resident = resident && (held.get().is_some() || !is_gpu(&device));
        let tile_rows = match stored.info().shape.len() {
            0 | 1 => stored.weight.rows(),
            _ => tile_rows(entry, stored, self.options),
        };
        let param = poison(param, entry.dtype);
        let (_, _, mapper) = param.clone().consume();
        let handle = Streamed::new(Inner {
            path: path.into(),
            stream: self.attached.stream.clone(),
            pass: self.attached.pass.clone(),
            chunks,
            weight: stored.weight.clone(),
            in_blocks: entry.in_blocks,
            dtype: entry.dtype,
            transposed: entry.transposed,
            device,
            mapper: Box::new(mapper),
            resident: resident.then_some(held),
            computes,
            slots: self.attached.slots.clone(),
            tile_rows,
            convert: entry.convert.clone(),
            low_rank: RwLock::default(),
            tape: self.attached.tape.clone(),
        });
        if let [rows, columns @ ..] = &param.lazy_shape()[..]
            && !columns.is_empty()
        {
            let columns = columns.iter().product();
            let shape = if entry.transposed { [columns, *rows] } else { [*rows, columns] };
            self.attached.matrices.push((handle.clone(), shape));
        }
        (param, Some(handle))
    }
}
