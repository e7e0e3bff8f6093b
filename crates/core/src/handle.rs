//! The handle as Burn's traversals meet it: a module without parameters, by which what would save,
//! move or train placeholders is refused.

use crate::streamed::Streamed;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};

impl Module for Streamed {
    /// Shows the visitor one more parameter: of no element, so that sums over shapes are right, and
    /// without a value, so that reading one is an error rather than a placeholder in a record.
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let inner = self.inner.clone();
        visitor.visit_float(&Param::<Tensor<1>>::uninitialized(
            ParamId::new(),
            move |_, _| {
                inner.refuse_use("reads its value other than by `Param::val()`, as saving it does")
            },
            self.inner.device.clone(),
            false,
            [0].into(),
        ));
    }

    fn map<M: ModuleMapper>(self, _mapper: &mut M) -> Self {
        self.inner.refuse_use(
            "maps it, as loading a record, freezing, quantising and an optimizer's step do",
        )
    }

    fn to_device(self, device: &Device) -> Self {
        if *device != self.inner.device {
            self.inner.refuse_use("moves it to another device")
        }
        self
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn train(self) -> Self {
        self.inner.refuse_use("trains it")
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices // its parameter is on the same one
    }
}
