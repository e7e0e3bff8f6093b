//! What a GPU does of what models ask of it, beside its memory and its link.
//!
//! ```text
//! cargo bench -p outsize-kernels --features vulkan --bench gpu
//! ```
//!
//! Products of one row are bound by the GPU's memory, those of many rows by its multiply-adds,
//! tiles that are uploaded by the link, and all of them by what it takes to launch an operation.

#[cfg(feature = "gpu")]
mod on_gpu;
#[path = "../common/timing.rs"]
#[allow(dead_code, reason = "without a GPU nothing is timed")]
mod timing;

fn main() {
    #[cfg(feature = "gpu")]
    on_gpu::main();
    #[cfg(not(feature = "gpu"))]
    println!("built without a GPU: name a backend, such as --features vulkan");
}
