//! Streams of uploads, and when work on a device is done.

use burn::tensor::Device;

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
            let done = cube.client().sync();
            let done = async move { done.await.map_err(|error| error.to_string()) };
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
    /// What the device says, if it failed.
    pub fn wait(self) -> Result<(), String> {
        #[cfg(feature = "gpu")]
        if let Some(done) = self.done {
            return burn_std::future::block_on(done);
        }
        Ok(())
    }
}
