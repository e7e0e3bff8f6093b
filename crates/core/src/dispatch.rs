use crate::load::{Load, load_scales};
use crate::matching::{Matched, match_parameters};
use crate::pass::Pass;
use crate::placeholder::poison;
use crate::registry::Registry;
use crate::streamed::{Chunks, Inner, Streamed};
use crate::{Dispatched, Error, Options, parameters, plan};
use burn::module::{Module, Param, Reparameterizer};
use burn::tensor::Tensor;
use outsize_checkpoint::Checkpoint;
use outsize_plan::{DeviceMap, Tier};
use outsize_stream::{Source, Stream};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Opens the checkpoint, decides what stays in memory, and attaches the rest: steps 2 to 4 of the
/// [crate]'s table.
///
/// # Errors
/// What is wrong with the checkpoint, how it does not fit the module, or how many bytes of budget would
/// do.
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
/// [`Error::NotBuilt`] for a map that uses a GPU; the rest as [`tree`](crate::tree()); and what reading said for the
/// parameters that are loaded at once.
pub fn dispatch<M: Module>(
    module: M,
    checkpoint: &Checkpoint,
    map: &DeviceMap,
    options: &Options,
) -> Result<Dispatched<M>, Error> {
    runs_here(map)?;
    let matched = match_parameters(&parameters(&module), &checkpoint.into(), options)?;
    load_scales(checkpoint, &matched)?;
    let mut load = Load::new(checkpoint, &matched);
    let module = if load.is_empty() { module } else { module.map(&mut load) };
    load.finish()?;

    let registry = Registry::new(&matched, map, options);
    let sources = checkpoint
        .files()
        .iter()
        .map(|file| Source::new(file.path(), file.file().clone()).since(file.opened()))
        .collect();
    let stream = Stream::new(
        sources,
        registry.chunks,
        registry.order,
        outsize_stream::Options { ring_bytes: map.ring_bytes(), ..options.stream() },
    )?;
    let pass = Arc::new(Pass::new(options.stop.clone()));
    let module = module.apply_reparameterization(Attach {
        stream: &stream,
        pass: &pass,
        matched: matched.iter().map(|entry| (entry.parameter.path.as_str(), entry)).collect(),
        handles: registry.handles,
    });
    stream.begin()?;
    Ok(Dispatched::new(module, map.clone(), stream, pass))
}

/// Whether all that the map uses is there.
fn runs_here(map: &DeviceMap) -> Result<(), Error> {
    for held in map.tiers() {
        let tier = held.tier;
        let computes = || {
            let mut blocks = map.blocks().iter();
            blocks.any(|block| block.decode_on == tier || block.prefill_on == tier)
        };
        if matches!(tier, Tier::Gpu(_)) && (held.weights > 0 || computes()) {
            return Err(Error::NotBuilt { tier });
        }
    }
    Ok(())
}

/// Puts a handle on each float parameter that has one, and a placeholder under it.
struct Attach<'a> {
    stream: &'a Stream,
    pass: &'a Arc<Pass>,
    matched: HashMap<&'a str, &'a Matched>,
    handles: HashMap<String, (Chunks, bool)>,
}

impl Reparameterizer for Attach<'_> {
    type Reparam = Streamed;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Streamed>) {
        let (Some((chunks, resident)), Some(entry)) =
            (self.handles.remove(path), self.matched.get(path))
        else {
            return (param, None);
        };
        let Some(stored) = &entry.stored else {
            return (param, None);
        };
        let device = param.lazy_device();
        let param = poison(param, entry.dtype);
        let (_, _, mapper) = param.clone().consume();
        let handle = Streamed::new(Inner {
            path: path.into(),
            stream: self.stream.clone(),
            pass: self.pass.clone(),
            chunks,
            weight: stored.weight.clone(),
            in_blocks: entry.in_blocks,
            dtype: entry.dtype,
            transposed: entry.transposed,
            device,
            mapper: Box::new(mapper),
            resident: resident.then(OnceLock::new),
            convert: entry.convert.clone(),
        });
        (param, Some(handle))
    }
}
