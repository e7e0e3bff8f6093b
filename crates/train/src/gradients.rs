//! Gradients of a model between backward and the optimizer's step.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::{Communicator, Error};

/// What `backward` gives the optimizer: averaged gradients, or nothing while they accumulate.
#[derive(Debug, Default)]
#[must_use = "gradients take effect in the optimizer's step"]
pub struct StepGradients(pub(crate) Option<GradientsParams>);

impl StepGradients {
    /// Burn's own gradients; none while they accumulate, or when the step is left out.
    #[must_use]
    pub fn into_inner(self) -> Option<GradientsParams> {
        self.0
    }

    /// Burn's own gradients; none while they accumulate, or when the step is left out.
    #[must_use]
    pub fn as_ref(&self) -> Option<&GradientsParams> {
        self.0.as_ref()
    }
}

/// A trainable parameter, and its gradient made flat.
pub(crate) struct FlatGradient<'a> {
    pub id: ParamId,
    pub shape: &'a [usize],
    pub gradient: Option<Tensor<1>>,
}

/// Passes the gradient of every trainable parameter through `edit`, in the order of the model.
/// A parameter that is used twice is passed once.
pub(crate) fn each_gradient<M: Module>(
    model: &M,
    gradients: &mut GradientsParams,
    edit: &mut dyn FnMut(FlatGradient<'_>) -> Option<Tensor<1>>,
) {
    struct Visitor<'a, 'b> {
        gradients: &'a mut GradientsParams,
        edit: &'a mut dyn FnMut(FlatGradient<'_>) -> Option<Tensor<1>>,
        seen: &'b mut HashSet<ParamId>,
    }
    impl ModuleVisitor for Visitor<'_, '_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_require_grad() || !self.seen.insert(param.id) {
                return;
            }
            let shape = param.lazy_shape();
            let gradient = self.gradients.remove::<D>(param.id);
            let gradient = gradient.map(|gradient| gradient.reshape([-1]));
            let flat = FlatGradient { id: param.id, shape: &shape, gradient };
            if let Some(gradient) = (self.edit)(flat) {
                let gradient = gradient.reshape::<D, _>(shape);
                self.gradients.register(param.id, gradient);
            }
        }
    }
    model.visit(&mut Visitor { gradients, edit, seen: &mut HashSet::new() });
}

/// Multiplies all gradients of a model.
pub(crate) fn scale<M: Module>(model: &M, gradients: &mut GradientsParams, factor: f64) {
    if factor != 1.0 {
        each_gradient(model, gradients, &mut |flat| Some(flat.gradient?.mul_scalar(factor)));
    }
}

/// The sum of squares of all gradients of a model, added in f32 within a parameter and in f64
/// between them.
pub(crate) fn squared_norm<M: Module>(model: &M, gradients: &mut GradientsParams) -> f64 {
    let mut sum = 0.0;
    each_gradient(model, gradients, &mut |flat| {
        let gradient = flat.gradient?;
        let squares = gradient.clone().cast(DType::F32).square().sum();
        sum += f64::from(squares.into_scalar::<f32>());
        Some(gradient)
    });
    sum
}

/// Sums the gradients of a model over ranks and multiplies them by `factor`.
///
/// Parameters of which no rank has a gradient are left without one. Sums are made in f32, in
/// buckets of at most `bucket_bytes` unless one parameter is larger; a bucket is on its way while
/// the next is collected from the device.
pub(crate) fn all_reduce<M: Module>(
    communicator: &dyn Communicator,
    model: &M,
    gradients: &mut GradientsParams,
    factor: f64,
    bucket_bytes: usize,
) -> Result<(), Error> {
    // What this rank has, parameter by parameter.
    let mut own: Vec<(usize, Option<Tensor<1>>)> = Vec::new();
    each_gradient(model, gradients, &mut |flat| {
        own.push((flat.shape.iter().product(), flat.gradient));
        None
    });
    let options: Vec<_> = own
        .iter()
        .map(|(_, gradient)| {
            gradient.as_ref().map(|gradient| (gradient.device(), gradient.dtype()))
        })
        .collect();

    // The last bucket says which parameters have gradients.
    let mut buckets: Vec<std::ops::Range<usize>> = Vec::new();
    let mut lengths: Vec<usize> = Vec::new();
    for (index, (length, _)) in own.iter().enumerate() {
        match (buckets.last_mut(), lengths.last_mut()) {
            (Some(bucket), Some(filled)) if (*filled + length) * 4 <= bucket_bytes => {
                bucket.end = index + 1;
                *filled += length;
            }
            _ => {
                buckets.push(index..index + 1);
                lengths.push(*length);
            }
        }
    }
    lengths.push(own.len());
    let sums = communicator.all_reduce(&lengths, &mut |index, bucket| {
        let Some(members) = buckets.get(index) else {
            let present = bucket.iter_mut().zip(&options);
            present.for_each(|(flag, options)| *flag = f32::from(u8::from(options.is_some())));
            return;
        };
        let mut rest = bucket;
        for (length, gradient) in &mut own[members.clone()] {
            let (values, after) = rest.split_at_mut(*length);
            rest = after;
            if let Some(gradient) = gradient.take() {
                let data = gradient.into_data_dtype(DType::F32);
                values.copy_from_slice(data.as_slice().expect("the data was read as f32"));
            }
        }
    })?;

    let (present, sums) = sums.split_last().expect("there is a bucket of flags");
    let mut rests: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
    let mut bucket_of = buckets
        .iter()
        .enumerate()
        .flat_map(|(bucket, members)| std::iter::repeat_n(bucket, members.len()));
    let mut options = present.iter().zip(options);
    let fallback = model.devices().first().cloned().unwrap_or_default().inner();
    each_gradient(model, gradients, &mut |flat| {
        let rest = &mut rests[bucket_of.next()?];
        let (sum, after) = rest.split_at(flat.shape.iter().product());
        *rest = after;
        let (&present, options) = options.next()?;
        let mean = || sum.iter().map(|sum| (f64::from(*sum) * factor) as f32).collect();
        let options = || options.unwrap_or((fallback.clone(), DType::F32));
        (present > 0.0).then(|| tensor(mean(), options()))
    });
    Ok(())
}

/// The shapes of a model's trainable parameters.
pub(crate) fn describe<M: Module>(model: &M) -> String {
    let mut shapes = Vec::new();
    each_gradient(model, &mut GradientsParams::new(), &mut |flat| {
        shapes.push(flat.shape.to_vec());
        None
    });
    format!("a model of {} trainable parameters {shapes:?}", shapes.len())
}

fn tensor(values: Vec<f32>, (device, dtype): (Device, DType)) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (&device, dtype))
}
