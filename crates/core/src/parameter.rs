use burn::module::{Module, ModuleVisitor, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{Bool, BoolStore, DType, Int, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// What kind of numbers a parameter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Floating point: may be streamed.
    Float,
    /// Integers: Burn has no hook for them, always resident.
    Int,
    /// Booleans: likewise.
    Bool,
}

/// One parameter of a module, seen without touching its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// What tells it from others of the module, wherever it is.
    pub id: ParamId,
    /// Path in the module, components joined by dots: `layers.0.linear.weight`.
    pub path: String,
    /// For each component of the path, the class of what contains it (`Struct:Linear`, `Vec` …).
    pub containers: Vec<Arc<str>>,
    /// What it holds.
    pub kind: Kind,
    /// Its shape as saved in a record: what a checkpoint of Burn's own layout holds.
    pub shape: Vec<usize>,
    /// The type that its device gives to numbers of this kind.
    pub dtype: DType,
    /// Whether a reparameterization is attached to it.
    pub hooked: bool,
    /// Whether one can be. Integers, booleans and running state, such as a `BatchNorm`'s, cannot be
    /// streamed: they are always resident.
    pub streams: bool,
    /// Whether it is on an autodiff device.
    pub autodiff: bool,
    /// Whether loading a value transposes it (`LinearLayout::Col`).
    pub flips: bool,
    /// Whether its value is quantised.
    pub quantized: bool,
}

impl Parameter {
    /// The name of the class that holds the parameter, without `Struct:`.
    pub fn class(&self) -> &str {
        self.class_at(self.containers.len().wrapping_sub(1))
    }

    /// The name of the class that holds component `depth` of the path.
    pub(crate) fn class_at(&self, depth: usize) -> &str {
        let class = self.containers.get(depth).map_or("", |class| &**class);
        class.split_once(':').map_or(class, |(_, name)| name)
    }

    /// The last component of its path: `weight`.
    pub fn field(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// The path of the block it belongs to: the outermost module of a class in `no_split`, else the
    /// module that holds it.
    pub fn block(&self, no_split: &[String]) -> &str {
        let mut end = 0;
        for (depth, part) in self.path.split('.').enumerate() {
            if no_split.iter().any(|wanted| wanted == self.class_at(depth)) {
                return self.path[..end].trim_end_matches('.');
            }
            end += part.len() + 1;
        }
        self.path.rsplit_once('.').map_or("", |(owner, _)| owner)
    }
}

/// The parameters of `module` in the order in which it declares them. Allocates no weight.
pub fn parameters<M: Module>(module: &M) -> Vec<Parameter> {
    let mut found = visit(module);
    if found.iter().any(|parameter| parameter.hooked) {
        for parameter in &mut found {
            parameter.streams = parameter.hooked;
        }
        return found;
    }
    // Some parameters go through the mapper but lose the hook: tried on a clone, which shares the
    // parameters' storage and initialises none of it.
    let tried = visit(&module.clone().apply_reparameterization(Try));
    let sticks: HashSet<&str> = tried
        .iter()
        .filter(|parameter| parameter.hooked)
        .map(|parameter| parameter.path.as_str())
        .collect();
    for parameter in &mut found {
        parameter.streams = sticks.contains(parameter.path.as_str());
    }
    found
}

fn visit<M: Module>(module: &M) -> Vec<Parameter> {
    let mut list = List::default();
    module.visit(&mut list);
    list.found
}

/// A hook that does nothing, to see where hooks hold.
#[derive(Module, Debug)]
struct Hook {}

impl Reparameterization for Hook {
    const NAME: &'static str = "hook";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base
    }
}

struct Try;

impl Reparameterizer for Try {
    type Reparam = Hook;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Hook>) {
        (param, Some(Hook {}))
    }
}

/// Container type of Burn's own traversal below a parameter that carries a hook.
const HOOK: &str = "Reparameterization";

#[derive(Default)]
struct List {
    path: Vec<String>,
    containers: Vec<Arc<str>>,
    /// All classes so far: few, of many parameters.
    classes: HashSet<Arc<str>>,
    /// Depth below a hook: its own parameters are not the module's.
    inside_hook: usize,
    found: Vec<Parameter>,
}

impl List {
    fn push(&mut self, id: ParamId, kind: Kind, shape: Vec<usize>, dtype: DType, autodiff: bool) {
        if self.inside_hook == 0 {
            self.found.push(Parameter {
                id,
                path: self.path.join("."),
                containers: self.containers.clone(),
                kind,
                shape,
                dtype,
                hooked: false,
                streams: false,
                autodiff,
                flips: false,
                quantized: false,
            });
        }
    }
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if container_type == HOOK {
            self.inside_hook += 1;
            if let Some(parameter) = self.found.last_mut() {
                parameter.hooked = true;
            }
        } else {
            self.path.push(name.to_string());
            let class = match self.classes.get(container_type) {
                Some(class) => class.clone(),
                None => {
                    let class: Arc<str> = container_type.into();
                    self.classes.insert(class.clone());
                    class
                }
            };
            self.containers.push(class);
        }
    }

    fn exit_module(&mut self, _name: &str, container_type: &str) {
        if container_type == HOOK {
            self.inside_hook -= 1;
        } else {
            self.path.pop();
            self.containers.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.inside_hook > 0 {
            return;
        }
        let device = param.lazy_device();
        let quantized = param.is_initialized() && matches!(param.base().dtype(), DType::QFloat(_));
        self.push(
            param.id,
            Kind::Float,
            param.lazy_shape().to_vec(),
            device.settings().float_dtype.into(),
            device.is_autodiff(),
        );
        if let Some(parameter) = self.found.last_mut() {
            parameter.quantized = quantized;
            parameter.flips = D == 2 && !quantized && flips(param);
            // Once there is a value, its shape is what Burn gives.
            if parameter.flips && param.is_initialized() {
                parameter.shape.reverse();
            }
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let device = param.lazy_device();
        let dtype = device.settings().int_dtype.into();
        self.push(param.id, Kind::Int, param.lazy_shape().to_vec(), dtype, device.is_autodiff());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let dtype = DType::Bool(BoolStore::Native);
        let autodiff = param.lazy_device().is_autodiff();
        self.push(param.id, Kind::Bool, param.lazy_shape().to_vec(), dtype, autodiff);
    }
}

/// Whether the parameter's load mapper transposes: tried on a tensor of two numbers, since the
/// mapper itself cannot be looked into.
fn flips<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let mut shape = [1; D];
    shape[D - 1] = 2;
    let probe = Tensor::<D>::zeros(shape, &param.lazy_device());
    let id = param.id;
    let loaded = param.clone().transform_for_load(probe, id);
    loaded.base().dims() != shape
}
