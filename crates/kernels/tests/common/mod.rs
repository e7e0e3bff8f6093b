//! Weights of any dtype for the tests.

#![allow(dead_code, reason = "each test binary uses a part")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod amx;

use half::{bf16, f16};
use outsize_kernels::{ActivationDtype, Isa, Weight};

/// The sets to test here; says which are left out. AMX is emulated where it is not. Only one if
/// `OUTSIZE_TEST_ISA` names it, as `AmxBf16`.
pub fn available() -> impl Iterator<Item = Isa> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    amx::provide();
    let only = std::env::var("OUTSIZE_TEST_ISA").ok();
    let asked = move |isa: &Isa| only.as_ref().is_none_or(|only| *only == format!("{isa:?}"));
    Isa::ALL.into_iter().filter(asked).filter(|isa| {
        if !isa.is_available() {
            eprintln!("SKIPPED: this processor does not have {isa:?}");
        }
        isa.is_available()
    })
}

/// Whether AMX is emulated, which is slow.
pub fn amx_is_emulated() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return amx::provide() == amx::Amx::Emulation;
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

/// Both ways to multiply.
pub const COMPUTES: [ActivationDtype; 2] = [ActivationDtype::F32, ActivationDtype::Bf16];

/// Activations as they are multiplied.
pub fn multiplied(compute: ActivationDtype, x: &[f32]) -> Vec<f32> {
    match compute {
        ActivationDtype::F32 => x.to_vec(),
        ActivationDtype::Bf16 => x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
    }
}

/// The dtypes of a weight.
#[derive(Clone, Copy, Debug)]
pub enum Dtype {
    Bf16,
    F16,
    F32,
}

pub const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

/// A weight that owns its elements.
#[derive(Clone, Debug)]
pub enum Stored {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Stored {
    /// `values`, rounded to `dtype`.
    pub fn new(dtype: Dtype, values: &[f32]) -> Stored {
        match dtype {
            Dtype::Bf16 => Stored::Bf16(values.iter().copied().map(bf16::from_f32).collect()),
            Dtype::F16 => Stored::F16(values.iter().copied().map(f16::from_f32).collect()),
            Dtype::F32 => Stored::F32(values.to_vec()),
        }
    }

    pub fn weight(&self) -> Weight<'_> {
        match self {
            Stored::Bf16(values) => Weight::Bf16(values),
            Stored::F16(values) => Weight::F16(values),
            Stored::F32(values) => Weight::F32(values),
        }
    }

    /// The values, widened.
    pub fn values(&self) -> Vec<f32> {
        match self {
            Stored::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
            Stored::F16(values) => values.iter().map(|value| value.to_f32_const()).collect(),
            Stored::F32(values) => values.clone(),
        }
    }
}

/// `count` numbers between -1 and 1 of many magnitudes, the same for the same seed.
pub fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let scale = [1.0, 0.5, 0.125, 0.01][(state >> 60) as usize % 4];
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(next).collect()
}

/// Bits, with one NaN for all.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }).collect()
}

/// The matmul in f64, and for each output the error that the crate's documentation allows.
pub fn reference(x: &[f32], weight: &[f32], [m, n, k]: [usize; 3]) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut allowed) = (vec![], vec![]);
    for i in 0..m {
        for j in 0..n {
            let matmuls = (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(weight[j * k + l]));
            let magnitude: f64 = matmuls.clone().map(f64::abs).sum();
            y.push(matmuls.sum());
            allowed.push((k as f64 / 4.0 + 4.0) * 2f64.powi(-23) * magnitude);
        }
    }
    (y, allowed)
}
