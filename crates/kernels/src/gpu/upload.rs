//! Streams of uploads, downloads, and when work on a device is done.

#[cfg(feature = "gpu")]
use super::failure;
use burn::tensor::{Bytes, Device, Tensor, TensorData};
use burn_std::Reader;

/// The most bytes of main memory that copies to one GPU pass through; with CUDA and ROCm it is
/// their own affair.
pub const UPLOAD_BYTES: u64 = 16 << 20;

/// A stream of a device by itself: what is allocated in it comes from memory of its own.
#[derive(Debug, Clone, Copy)]
pub struct UploadStream {
    #[cfg(feature = "gpu")]
    stream: burn_std::id::StreamId,
}

impl UploadStream {
    /// A new one.
    #[allow(clippy::new_without_default, reason = "each is another stream")]
    pub fn new() -> Self {
        Self {
            #[cfg(feature = "gpu")]
            stream: burn_std::id::StreamId::allocate(),
        }
    }

    /// Runs what makes tensors in this stream.
    pub fn enter<R>(&self, make: impl FnOnce() -> R) -> R {
        #[cfg(feature = "gpu")]
        return self.stream.executes(make);
        #[cfg(not(feature = "gpu"))]
        make()
    }
}

/// The values of a tensor, in main memory.
///
/// # Errors
/// What its device says, if it failed.
pub fn download<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, String> {
    let data = tensor.try_into_data().map_err(|error| error.to_string())?;
    // Burn waits for them when they are first looked at, and panics there. They are copied, as they
    // would keep the buffer that they came through, which is of the device's pools.
    let (shape, dtype) = (data.shape().clone(), data.dtype());
    let values = data.bytes().read(Reader::new()).map_err(|error| error.to_string())?;
    TensorData::try_from_bytes(Bytes::from_bytes_vec(values.to_vec()), shape, dtype)
        .map_err(|error| error.to_string())
}

/// The end of the work that was given to a device by now.
pub struct Fence {
    #[cfg(feature = "gpu")]
    done: Option<Done>,
}

#[cfg(feature = "gpu")]
type Done = std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

impl Fence {
    /// The end of what the calling thread gave to the device so far.
    pub fn new(device: &Device) -> Self {
        #[cfg(feature = "gpu")]
        if let burn::backend::DispatchDevice::Cube(cube) = device.as_dispatch() {
            let (done, device) = (cube.client().sync(), device.clone());
            let done = async move {
                let done = done.await;
                failure(&device).map_or_else(|| done.map_err(|error| error.to_string()), Err)
            };
            return Self { done: Some(Box::pin(done)) };
        }
        let _ = device;
        Self {
            #[cfg(feature = "gpu")]
            done: None,
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What the device says, if it failed, or [refused](super::failure) something by then.
    pub fn wait(self) -> Result<(), String> {
        #[cfg(feature = "gpu")]
        if let Some(done) = self.done {
            return burn_std::future::block_on(done);
        }
        Ok(())
    }
}
