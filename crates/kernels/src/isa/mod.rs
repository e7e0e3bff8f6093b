//! Which vector instructions this processor has.

#[cfg(target_arch = "x86_64")]
mod amx;

use std::sync::OnceLock;

/// A set of vector instructions for which this crate has code.
///
/// Results are reproducible bit for bit within one set; between sets they differ by rounding, as
/// the lanes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust in four lanes, which the compiler vectorizes with what every processor of the
    /// target has (SSE2 on x86-64, NEON on AArch64).
    Portable,
    /// AVX2 with FMA and F16C, eight lanes: x86-64 processors since about 2013.
    Avx2,
    /// AVX-512 F, BW and VL, sixteen lanes: servers since 2017, AMD processors since Zen 4.
    Avx512,
    /// The same with products of pairs of bf16, for
    /// [`ActivationDtype::Bf16`](crate::ActivationDtype::Bf16): Intel's servers since 2020 and
    /// 2023, AMD processors since Zen 4.
    Avx512Bf16,
    /// The same with products of whole tiles of bf16: Intel's servers since 2023. Linux is asked
    /// for permission.
    AmxBf16,
}

impl Isa {
    /// All sets, narrowest first.
    pub const ALL: [Isa; 5] =
        [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::AmxBf16];

    /// Its name, as processors are said to have it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable if cfg!(target_arch = "x86_64") => "SSE2",
            Isa::Portable if cfg!(target_arch = "aarch64") => "NEON",
            Isa::Portable => "none",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
            Isa::Avx512Bf16 => "AVX-512 with bf16",
            Isa::AmxBf16 => "AMX with bf16",
        }
    }

    /// The widest set that this processor has. Looked up once per process.
    pub fn detected() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let widest = Isa::ALL.into_iter().rev().find(|isa| isa.is_available());
            widest.unwrap_or(Isa::Portable)
        })
    }

    /// Whether this processor, under this operating system, runs the set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            // The narrower set is asked for too: the code for this one uses F16C on half vectors.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 => Isa::Avx512Bf16.is_available() && amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => false,
        }
    }

    /// Takes AMX for available whatever the processor says, so that tests can run its loops on an
    /// emulation.
    ///
    /// # Safety
    ///
    /// From now on something in this process carries AMX instructions out.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn assume_amx() {
        amx::assume();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_set_is_available_and_the_widest() {
        let detected = Isa::detected();
        assert!(detected.is_available());
        let wider = Isa::ALL.into_iter().skip_while(|&isa| isa != detected).skip(1);
        assert!(wider.into_iter().all(|isa| !isa.is_available()));
    }
}
