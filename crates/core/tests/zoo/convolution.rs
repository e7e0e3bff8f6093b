use crate::common::{Numbers, flat};
use crate::specimen::{Specimen, check};
use burn::module::Module;
use burn::nn::conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvTranspose1d,
    ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d,
    ConvTranspose3dConfig, DeformConv2d, DeformConv2dConfig,
};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
pub struct Plain {
    one: Conv1d,
    two: Conv2d,
    three: Conv3d,
    deform: DeformConv2d,
}

impl Specimen for Plain {
    fn new(device: &Device) -> Self {
        Self {
            one: Conv1dConfig::new(16, 32, 3).with_groups(2).init(device),
            two: Conv2dConfig::new([8, 24], [3, 2]).init(device),
            three: Conv3dConfig::new([4, 12], [2, 3, 2]).init(device),
            deform: DeformConv2dConfig::new([4, 12], [3, 3]).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let mut numbers = Numbers(seed);
        let one = self.one.forward(numbers.tensor([2, 16, 9]));
        let two = self.two.forward(numbers.tensor([2, 8, 7, 6]));
        let three = self.three.forward(numbers.tensor([1, 4, 4, 5, 4]));
        let deform =
            self.deform.forward(numbers.tensor([1, 4, 5, 5]), numbers.tensor([1, 18, 3, 3]), None);
        Tensor::cat(vec![flat(one), flat(two), flat(three), flat(deform)], 0)
    }
}

#[derive(Module, Debug)]
pub struct Transposed {
    one: ConvTranspose1d,
    two: ConvTranspose2d,
    three: ConvTranspose3d,
}

impl Specimen for Transposed {
    fn new(device: &Device) -> Self {
        Self {
            one: ConvTranspose1dConfig::new([16, 32], 3).with_groups(2).init(device),
            two: ConvTranspose2dConfig::new([8, 24], [3, 2]).with_stride([2, 1]).init(device),
            three: ConvTranspose3dConfig::new([4, 12], [2, 3, 2]).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let mut numbers = Numbers(seed);
        let one = self.one.forward(numbers.tensor([2, 16, 9]));
        let two = self.two.forward(numbers.tensor([2, 8, 4, 5]));
        let three = self.three.forward(numbers.tensor([1, 4, 3, 3, 3]));
        Tensor::cat(vec![flat(one), flat(two), flat(three)], 0)
    }
}

#[test]
fn convolution() {
    check::<Plain>();
}

#[test]
fn transposed_convolution() {
    check::<Transposed>();
}
