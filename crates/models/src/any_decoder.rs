//! Decoders whose architecture is known at run time only.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use burn::module::{ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{Options, Parameter, parameters};
use outsize_plan::DeviceMap;

use crate::{Decoder, DecoderArchitecture, DispatchedDecoder, Init};

/// A decoder without storage, of whichever architecture.
#[derive(Clone)]
pub(crate) struct EmptyDecoder {
    pub(crate) config: Arc<dyn AnyConfig>,
    pub(crate) model: Arc<dyn Decoder>,
    pub(crate) parameters: Arc<[Parameter]>,
}

impl EmptyDecoder {
    pub(crate) fn new<D: DecoderArchitecture>(config: D::Config) -> Self {
        let model = D::new(&config, &Init::new(&Device::flex()));
        let parameters = parameters(&model).into();
        Self { config: Arc::new(ConfigOf::<D>(config)), model: Arc::new(model), parameters }
    }
}

/// The configuration of a decoder of whichever architecture, and what is made of it.
pub(crate) trait AnyConfig: Any + Debug + Send + Sync {
    fn is_same(&self, other: &dyn AnyConfig) -> bool;

    /// A model that is all in memory, with these values in the order of its parameters.
    fn fill(&self, init: &Init, values: Vec<TensorData>) -> Box<dyn Decoder>;

    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &Options,
    ) -> Result<DispatchedDecoder, outsize_core::Error>;
}

impl dyn AnyConfig {
    /// That of architecture `D`, if it is one.
    pub(crate) fn of<D: DecoderArchitecture>(&self) -> Option<&D::Config> {
        let any: &dyn Any = self;
        any.downcast_ref().map(|ConfigOf::<D>(config)| config)
    }
}

struct ConfigOf<D: DecoderArchitecture>(D::Config);

impl<D: DecoderArchitecture> AnyConfig for ConfigOf<D> {
    fn is_same(&self, other: &dyn AnyConfig) -> bool {
        other.of::<D>() == Some(&self.0)
    }

    fn fill(&self, init: &Init, values: Vec<TensorData>) -> Box<dyn Decoder> {
        Box::new(D::new(&self.0, init).map(&mut Fill(values.into_iter())))
    }

    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &Options,
    ) -> Result<DispatchedDecoder, outsize_core::Error> {
        let model = D::new(&self.0, init);
        Ok(outsize_core::dispatch(model, checkpoint, map, options)?.into())
    }
}

impl<D: DecoderArchitecture> Debug for ConfigOf<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Gives each parameter the next value.
struct Fill(std::vec::IntoIter<TensorData>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.0.next() else {
            return param;
        };
        let dtype = data.dtype();
        Param::initialized(param.id, Tensor::from_data(data, (&param.lazy_device(), dtype)))
    }
}
