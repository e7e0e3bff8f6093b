use crate::Tier;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How fast a machine is. Rates in bytes or operations per second, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HardwareProfile {
    /// Direct reads of the checkpoint's files, several in flight.
    pub disk: Bandwidth,
    /// Memory copies.
    pub copy_bytes_per_second: f64,
    /// First-touch bandwidth, page faults included: resident weights pay it once.
    pub first_touch_bytes_per_second: f64,
    /// The processors of the host, together.
    pub cpu: Processor,
    /// GPUs by their number.
    pub gpus: BTreeMap<usize, Gpu>,
}

impl Bandwidth {
    /// Seconds for so many bytes; zero for none.
    pub(crate) fn seconds(&self, bytes: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        self.latency_seconds.max(0.0) + bytes / self.bytes_per_second.max(f64::MIN_POSITIVE)
    }
}

/// The bandwidth of a link or disk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes per second of a long transfer.
    pub bytes_per_second: f64,
    /// Seconds until the first byte arrives.
    pub latency_seconds: f64,
}

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    /// Memory reads by all cores, in bytes per second.
    pub memory_bytes_per_second: f64,
    /// Weight bytes per second of a gemv.
    pub product_bytes_per_second: f64,
    /// Floating point operations per second of a gemm.
    pub product_flops: f64,
    /// Passes of many tokens, if they were measured by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<PrefillRates>,
    /// Bytes of keys and values per second of attention.
    pub cache_bytes_per_second: f64,
    /// Fixed seconds of a block beside matmuls and attention: norms, and launching operations.
    pub block_seconds: f64,
}

/// How fast a processor is at passes of many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PrefillRates {
    /// Matmuls of f32 activations.
    pub f32: GemmRates,
    /// Matmuls of activations rounded to bf16.
    pub bf16: GemmRates,
    /// Floating point operations per second of attention.
    pub attention_flops: f64,
}

/// Matmuls of many rows, and what lies between them. They take as long as their weights at one
/// rate, their operations at another, and their activations at a third, together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GemmRates {
    /// Bytes of weights per second: they are unpacked and packed however few the rows are.
    pub bytes_per_second: f64,
    /// Floating point operations per second.
    pub flops: f64,
    /// Norms, rotary embeddings, gates and the like, and moving activations: values per second that
    /// go into the matmuls and come out of them.
    pub values_per_second: f64,
}

/// A GPU and its link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// What computes on it.
    pub processor: Processor,
    /// From main memory to its own.
    pub upload: Bandwidth,
    /// From its memory to main memory; as the other way if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<Bandwidth>,
}

impl Gpu {
    /// From its memory to main memory.
    pub fn download(&self) -> Bandwidth {
        self.download.unwrap_or(self.upload)
    }
}

impl Default for Gpu {
    /// The default profile: a mid-range card on 16 lanes of PCIe 4.
    fn default() -> Self {
        Self {
            processor: Processor {
                memory_bytes_per_second: 500e9,
                product_bytes_per_second: 400e9,
                product_flops: 40e12,
                prefill: None,
                cache_bytes_per_second: 200e9,
                block_seconds: 100e-6,
            },
            upload: Bandwidth { bytes_per_second: 20e9, latency_seconds: 20e-6 },
            download: None,
        }
    }
}

impl Default for HardwareProfile {
    /// The default profile: a desktop machine that was not measured.
    fn default() -> Self {
        Self {
            disk: Bandwidth { bytes_per_second: 2e9, latency_seconds: 100e-6 },
            copy_bytes_per_second: 8e9,
            first_touch_bytes_per_second: 2e9,
            cpu: Processor {
                memory_bytes_per_second: 25e9,
                product_bytes_per_second: 20e9,
                product_flops: 200e9,
                prefill: Some(PrefillRates {
                    f32: GemmRates { bytes_per_second: 40e9, flops: 200e9, values_per_second: 1e9 },
                    bf16: GemmRates {
                        bytes_per_second: 40e9,
                        flops: 350e9,
                        values_per_second: 1e9,
                    },
                    attention_flops: 100e9,
                }),
                cache_bytes_per_second: 8e9,
                block_seconds: 200e-6,
            },
            gpus: BTreeMap::new(),
        }
    }
}

impl HardwareProfile {
    /// The processor of the tier; the host's for the disk.
    pub fn processor(&self, tier: Tier) -> Processor {
        match tier {
            Tier::Gpu(number) => self.gpu(number).processor,
            Tier::Cpu | Tier::Disk => self.cpu,
        }
    }

    /// The GPU of this number; the default profile if it was not measured.
    pub fn gpu(&self, number: usize) -> Gpu {
        self.gpus.get(&number).copied().unwrap_or_default()
    }
}
