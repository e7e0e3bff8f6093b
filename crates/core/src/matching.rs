//! Which tensor of the checkpoint belongs to which parameter.

use crate::convert;
use crate::integers;
use crate::loaded_scales::Scales;
use crate::names::Names;
use crate::stored_shape::{as_rows, flat, without_frames};
use crate::{
    Access, Error, FloatType, KeyMismatch, Kind, Layout, Location, Options, Parameter, TensorTable,
};
use burn::tensor::DType;
use outsize_checkpoint::{Dtype, FormatFault, StoredWeight, TensorInfo};
use outsize_plan::Routed;
use outsize_stream::{Chunk, Convert, Segment, footprint};
use std::collections::{HashMap, HashSet};

/// What the names of matrices end in.
const WEIGHT: &str = "weight";

/// A parameter and the tensor that holds its value.
#[derive(Debug, Clone)]
pub(crate) struct Matched<'a> {
    pub(crate) parameter: &'a Parameter,
    /// What holds its value; none for a parameter that keeps its own initialisation.
    pub(crate) stored: Option<Stored>,
    /// Whether the tensor is stored with its axes the other way round.
    pub(crate) transposed: bool,
    /// The type in which it is held.
    pub(crate) dtype: DType,
    /// The conversion of a float parameter to that type.
    pub(crate) convert: Option<Convert>,
    /// Frames that are stored of a convolution of which the last one is held; one of all else.
    pub(crate) frames: usize,
    /// Whether it is held in the blocks in which it is stored.
    pub(crate) in_blocks: bool,
    /// The scales that the conversion waits for.
    pub(crate) scales: Option<Scales>,
    /// How a router chooses the expert that it belongs to, if it belongs to one: passes may leave
    /// it out.
    pub(crate) routed: Option<Routed>,
}

/// What of the checkpoint holds a value: a tensor or a part of one, with its scales.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// The tensor's number in the checkpoint, and which part of how many. The same for parameters
    /// that share their value.
    pub(crate) key: (usize, usize, usize),
    /// Its name, and which part.
    pub(crate) name: String,
    /// Where it lies, and its shape.
    pub(crate) weight: StoredWeight,
}

impl Stored {
    /// The part of the weight that `location` names; nothing if its rows cannot be divided so.
    fn new(at: usize, weight: StoredWeight, location: &Location) -> Option<Self> {
        let weight = match location.parts {
            1 => weight,
            parts => {
                let rows = *weight.data().shape.first()?;
                if !rows.is_multiple_of(parts) {
                    return None;
                }
                let rows = rows / parts;
                weight.slice(location.part * rows..(location.part + location.count) * rows)
            }
        };
        Some(Self { key: (at, location.part, location.parts), name: location.to_string(), weight })
    }

    /// The data: of a part, that part's alone.
    pub(crate) fn info(&self) -> &TensorInfo {
        self.weight.data()
    }
}

impl Matched<'_> {
    /// Bytes of the value as held on the device.
    pub(crate) fn bytes(&self, stored: &Stored) -> u64 {
        self.held(&stored.weight)
    }

    /// Bytes that a tile needs at least: one row of the value as held on the device.
    pub(crate) fn row_bytes(&self, stored: &Stored) -> u64 {
        match stored.weight.rows() {
            0 => 0,
            _ => self.held(&stored.weight.slice(0..1)),
        }
    }

    /// The value, or some rows of it, as one chunk of streaming.
    pub(crate) fn chunk(&self, stored: &Stored, rows: &StoredWeight) -> Chunk {
        let segment = |tensor: &TensorInfo, align, convert| Segment {
            source: tensor.file,
            offset: tensor.offset,
            len: tensor.len,
            align,
            convert,
        };
        // What is encoded is read byte by byte, wherever it lies.
        let in_blocks = |(tensor, part)| segment(tensor, 1, integers::convert(rows, tensor, part));
        let segments = match self.in_blocks {
            true => integers::parts(rows).map(in_blocks).collect(),
            false => vec![segment(rows.data(), self.dtype.size(), self.convert.clone())],
        };
        Chunk {
            name: stored.name.as_str().into(),
            segments,
            keep: false,
            occasional: self.routed.is_some(),
        }
    }

    /// Bytes that some rows of the value take in memory. Scales and zero points begin with a page
    /// of their own.
    pub(crate) fn held(&self, rows: &StoredWeight) -> u64 {
        if self.in_blocks {
            let [data, others @ ..] = rows.bytes_in_memory();
            let others = others.into_iter().filter(|bytes| *bytes > 0).map(footprint);
            return others.fold(data, u64::saturating_add);
        }
        if rows.format().as_integers().is_some() {
            let elements = rows.data().shape.iter().map(|n| *n as u64);
            let elements = elements.fold(1, u64::saturating_mul);
            return elements.saturating_mul(self.dtype.size() as u64);
        }
        let block = rows.format().encoding.block();
        let elements = rows.data().len / block.bytes.max(1) as u64 * block.elements as u64;
        (elements / self.frames as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// How the value is read if it is streamed.
    pub(crate) fn access(&self, options: &Options) -> Access {
        if self.stored.as_ref().is_some_and(|stored| stored.weight.is_turned()) {
            return Access::Whole;
        }
        match options.access.get(&self.parameter.path) {
            Some(access) if self.parameter.shape.len() == 2 => *access,
            // Some outputs of a convolution are a matrix of their own.
            Some(Access::Tiles) if self.parameter.shape.len() > 2 => Access::Tiles,
            _ => Access::Whole,
        }
    }
}

/// Finds every parameter's tensor, or says in one error all that is wrong.
pub(crate) fn match_parameters<'a>(
    parameters: &'a [Parameter],
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<Vec<Matched<'a>>, Error> {
    for parameter in parameters {
        refuse(parameter)?;
    }
    // Square matrices would fit either way round.
    if table.is_burnpack() && options.names.layout() == Layout::PyTorch {
        return Err(Error::Layout { checkpoint: table.place().to_string() });
    }
    matching(parameters, table, options).map_err(|error| match error {
        Error::Mismatch(mut misfit) => {
            misfit.advice = other_layout(parameters, table, options);
            Error::Mismatch(misfit)
        }
        error => error,
    })
}

/// What to do, if other conventions would do.
fn other_layout(
    parameters: &[Parameter],
    table: &TensorTable<'_>,
    options: &Options,
) -> Option<String> {
    let (other, advice) = match options.names.layout() {
        Layout::Burn => (
            Layout::PyTorch,
            "It has the names and shapes of PyTorch: say so with Names::new(Layout::PyTorch)",
        ),
        Layout::PyTorch => {
            (Layout::Burn, "It has the names and shapes of Burn: say so with Names::default()")
        }
    };
    let names = options.names.clone().with_layout(other);
    let fits = matching(parameters, table, &Options { names, ..options.clone() }).is_ok();
    fits.then(|| advice.to_owned())
}

/// The same, without advice.
fn matching<'a>(
    parameters: &'a [Parameter],
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<Vec<Matched<'a>>, Error> {
    let mut misfit =
        KeyMismatch { checkpoint: table.place().to_string(), ..KeyMismatch::default() };
    let mut used = Used::default();
    let mut matched = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let mut entry = Matched {
            parameter,
            stored: None,
            transposed: options.names.is_transposed(parameter),
            dtype: parameter.dtype,
            convert: None,
            frames: 1,
            in_blocks: false,
            scales: None,
            routed: options.routed.get(&parameter.path).copied(),
        };
        match find(parameter, table, options)? {
            Ok(Found { at, location, modules }) => {
                used.add(at, &location);
                let (tensor, wanted) = (&table.tensors()[at], wanted_shape(&entry));
                if let (Some(modules), Some((count, shape))) = (modules, tensor.shape.split_first())
                    && ![modules, location.parts].contains(count)
                    && tensor.shape.len() > wanted.len()
                {
                    let wanted = std::iter::once(modules).chain(shape.iter().copied()).collect();
                    misfit.misshaped.push((tensor.name.clone(), tensor.shape.clone(), wanted));
                    continue;
                }
                let stack = modules.map(|_| as_rows(tensor, &wanted, location.parts));
                let mut tensor = flat(stack.as_ref().unwrap_or(tensor), &wanted, &location);
                if options.names.takes_last_frames() {
                    entry.frames = without_frames(&mut tensor, &wanted);
                }
                let tensor = &tensor;
                let columns = wanted.get(1).copied();
                let (weight, others) = weight(tensor, columns, parameter, table, options)?;
                others.into_iter().for_each(|other| used.add(other, &Location::whole("")));
                match Stored::new(at, weight, &location) {
                    Some(stored) => {
                        fit(&mut entry, &stored, options, &mut misfit);
                        entry.stored = Some(stored);
                    }
                    None => {
                        let mut wanted = wanted_shape(&entry);
                        if let Some(rows) = wanted.first_mut() {
                            *rows = rows.saturating_mul(location.parts) / location.count;
                        }
                        misfit.misshaped.push((tensor.name.clone(), tensor.shape.clone(), wanted));
                    }
                }
            }
            Err(_) if options.allow_missing => {}
            Err(names) => misfit.missing.push((parameter.path.clone(), names)),
        }
        matched.push(entry);
    }
    if !options.allow_extra {
        misfit.unexpected = used.unexpected(table, options);
    }
    if misfit.is_empty() {
        return Ok(matched);
    }
    // Of a stack that is wrong, all parts say the same.
    let mut said = HashSet::new();
    misfit.misshaped.retain(|misshaped| said.insert(misshaped.clone()));
    misfit.unused_rules = options.names.unused(parameters);
    Err(Error::Mismatch(Box::new(misfit)))
}

/// The weight that a tensor is the data of, and the numbers of the tensors that go with it.
fn weight(
    tensor: &TensorInfo,
    columns: Option<usize>,
    parameter: &Parameter,
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<(StoredWeight, Vec<usize>), FormatFault> {
    if parameter.kind != Kind::Float {
        return Ok((StoredWeight::plain(tensor.clone()), Vec::new()));
    }
    let mut others = Vec::new();
    let weight = StoredWeight::of_data(tensor, options.format, columns, |name| {
        let at = table.position(name)?;
        others.push(at);
        Some(table.tensors()[at].clone())
    })?;
    let shape = weight.format().shape_name(&tensor.name);
    others.extend(shape.and_then(|name| table.position(&name)));
    Ok((weight, others))
}

/// What cannot be dispatched, whatever the checkpoint.
fn refuse(parameter: &Parameter) -> Result<(), Error> {
    let path = parameter.path.clone();
    if parameter.hooked {
        return Err(Error::Reparameterized { path });
    }
    if parameter.autodiff {
        return Err(Error::Autodiff { path });
    }
    if parameter.quantized {
        return Err(Error::Quantized { path });
    }
    Ok(())
}

/// Where a parameter was found.
struct Found {
    /// The tensor's number.
    at: usize,
    location: Location,
    /// How many modules are [stacked](Names::stacked) there.
    modules: Option<usize>,
}

/// The tensor that holds `parameter`, and which part of it; or the names looked for.
fn find(
    parameter: &Parameter,
    table: &TensorTable<'_>,
    options: &Options,
) -> Result<Result<Found, String>, Error> {
    let found = |at, location| Found { at, location, modules: None };
    let plain = options.names.plain(parameter);
    if let Some(at) = position(&plain.tensor, parameter, table, options) {
        return Ok(Ok(found(at, plain)));
    }
    if let Some(tensor) = options.names.without_prefix(&plain.tensor)
        && let Some(at) = position(tensor, parameter, table, options)
    {
        let tensor = tensor.to_string();
        return Ok(Ok(found(at, Location { tensor, ..plain })));
    }
    match options.names.packed(parameter, &plain) {
        Ok(packed) => {
            let packed = packed.map(|part| (part, None)).into_iter();
            let stacks = options.names.stacks(&plain.tensor).map(|(part, n)| (part, Some(n)));
            let mut names = plain.to_string();
            for (part, modules) in packed.chain(stacks) {
                if let Some(at) = position(&part.tensor, parameter, table, options) {
                    return Ok(Ok(Found { modules, ..found(at, part) }));
                }
                names.push_str(&format!(" or {part}"));
            }
            Ok(Err(names))
        }
        Err(_) if knows_norms(parameter, table, &options.names) => {
            Err(Error::NormOrder { path: parameter.path.clone() })
        }
        Err(_) => Ok(Err(plain.to_string())),
    }
}

/// The number of the tensor of this name, or of that which holds a matrix of this name in words.
fn position(
    name: &str,
    parameter: &Parameter,
    table: &TensorTable<'_>,
    options: &Options,
) -> Option<usize> {
    let in_words = || {
        let format = options.format.filter(|format| format.as_integers().is_some())?;
        let may_be = parameter.shape.len() == 2 && name.ends_with(WEIGHT);
        table.position(&may_be.then(|| format.data_name(name))?)
    };
    table.position(name).or_else(in_words)
}

/// Whether the checkpoint has the norm under one of PyTorch's names.
fn knows_norms(parameter: &Parameter, table: &TensorTable<'_>, names: &Names) -> bool {
    [false, true].iter().any(|norm_first| {
        let names = names.clone().norm_first(*norm_first);
        let packed = names.packed(parameter, &names.plain(parameter));
        matches!(packed, Ok(Some(packed)) if table.position(&packed.tensor).is_some())
    })
}

fn wanted_shape(entry: &Matched) -> Vec<usize> {
    let mut wanted = entry.parameter.shape.clone();
    if entry.transposed {
        wanted.reverse();
    }
    wanted
}

/// Checks shape and type of one pair, and notes how the value is held.
fn fit(entry: &mut Matched, stored: &Stored, options: &Options, misfit: &mut KeyMismatch) {
    let (wanted, tensor) = (wanted_shape(entry), stored.info());
    if tensor.shape != wanted {
        misfit.misshaped.push((stored.name.clone(), tensor.shape.clone(), wanted));
    }
    let mistyped = match entry.parameter.kind {
        Kind::Float => match float(entry, stored, options) {
            Ok(convert) => {
                entry.convert = convert;
                None
            }
            Err(convert::NoConversion) => Some("floating point"),
        },
        Kind::Int => match tensor.dtype {
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => None,
            Dtype::U64 | Dtype::U32 | Dtype::U16 | Dtype::U8 => None,
            _ => Some("integers"),
        },
        Kind::Bool => match tensor.dtype {
            Dtype::Bool => None,
            _ => Some("booleans"),
        },
    };
    if let Some(wanted) = mistyped {
        misfit.mistyped.push((stored.name.clone(), tensor.dtype.to_string(), wanted));
    }
}

/// Decides in which type floats are held; their conversion to it.
fn float(
    entry: &mut Matched,
    stored: &Stored,
    options: &Options,
) -> Result<Option<Convert>, convert::NoConversion> {
    let plain = stored.weight.format().is_plain();
    // Who says how a matrix is read goes through the handle, and takes what that gives.
    let path = &entry.parameter.path;
    entry.in_blocks = !plain
        && options.float_type == FloatType::AsStored
        && options.access.contains_key(path)
        && entry.parameter.shape.len() == 2
        && entry.parameter.streams
        && !entry.transposed;
    entry.dtype = match (options.float_type, stored.info().dtype) {
        (FloatType::AsStored, dtype) if plain => convert::burn_type(dtype),
        // What is not multiplied as it is stored is what it was before.
        (FloatType::AsStored, Dtype::PackedBf16(_)) if !entry.in_blocks => DType::BF16,
        (FloatType::AsStored, _) => DType::F32,
        (FloatType::Cast(dtype), _) => dtype,
    };
    if plain {
        let convert = convert::float(stored.info().dtype, entry.dtype)?;
        if entry.frames == 1 {
            return Ok(convert);
        }
        let window = entry.parameter.shape.iter().skip(2).product();
        let sizes = [stored.info().dtype.size(), entry.dtype.size()];
        return Ok(Some(convert::last_frame(convert, sizes, window, entry.frames)));
    }
    let is_table = options.access.get(path) == Some(&Access::Rows);
    if is_table && stored.weight.format().as_integers().is_some() {
        // A row of a table would have its own scales.
        return Err(convert::NoConversion);
    }
    if entry.in_blocks {
        return Ok(None);
    }
    let scales = entry.scales.insert(Scales::default());
    convert::dequantize(&stored.weight, entry.dtype, scales).map(Some)
}

/// Which tensors parameters were found for, and which parts of those that are divided.
#[derive(Default)]
struct Used(HashMap<usize, HashSet<(usize, usize)>>);

impl Used {
    fn add(&mut self, at: usize, location: &Location) {
        let used = self.0.entry(at).or_default();
        let parts = location.part..location.part + location.count;
        used.extend(parts.map(|part| (part, location.parts)));
    }

    /// What belongs to no parameter.
    fn unexpected(&self, table: &TensorTable<'_>, options: &Options) -> Vec<String> {
        let has = |name: &str| {
            let at = table.position(name);
            at.is_some_and(|at| self.0.contains_key(&at))
        };
        let place = |tensor: &TensorInfo| (tensor.file, tensor.offset, tensor.len);
        let used: HashSet<_> = self.0.keys().map(|at| place(&table.tensors()[*at])).collect();
        let mut unexpected = Vec::new();
        for (at, tensor) in table.tensors().iter().enumerate() {
            let name = &tensor.name;
            if options.ignore.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            match self.0.get(&at) {
                None if options.names.is_bookkeeping(name, has) => {}
                // Another name for the same bytes, as tied tensors have.
                None if tensor.len > 0 && used.contains(&place(tensor)) => {}
                None => unexpected.push(name.clone()),
                Some(used) => unexpected.extend(unused_parts(name, used)),
            }
        }
        unexpected
    }
}

/// The parts of a divided tensor that no parameter takes.
fn unused_parts<'a>(
    name: &'a str,
    used: &'a HashSet<(usize, usize)>,
) -> impl Iterator<Item = String> + 'a {
    // If it is also used otherwise, as a whole say, there is nothing left of it.
    let mut counts: Vec<usize> = used.iter().map(|(_, parts)| *parts).collect();
    counts.dedup();
    let parts = if let [parts] = counts[..] { parts } else { 0 };
    (0..parts).filter(move |part| !used.contains(&(*part, parts))).map(move |part| {
        let tensor = name.to_string();
        Location { tensor, part, parts, count: 1 }.to_string()
    })
}
