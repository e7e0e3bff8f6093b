//! Copies to GPUs of wgpu's kinds through mapped memory that is used again and again.
//!
//! wgpu itself allocates such memory for each copy, and one thread fills it: that is slower than
//! the bus. Here all threads fill one buffer while the device reads the ones before.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn::backend::{Cube, DispatchDevice};
use burn::tensor::{Device, Int, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::wgpu::{
    AutoCompiler, AutoGraphicsApi, RuntimeOptions, WgpuResource, WgpuServer, WgpuSetup,
    try_init_setup, wgpu,
};

use super::failures::{self, failure};
use super::upload::UPLOAD_BYTES;
use crate::loops;

/// Bytes of a buffer.
const BUFFER: usize = 4 << 20;

/// The most buffers of a device.
const BUFFERS: usize = UPLOAD_BYTES as usize / BUFFER;

/// Bytes that one thread copies at a time.
const PIECE: usize = 256 << 10;

/// How long a buffer may take to be mapped once its copy is done.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is said of a device that does not map a buffer again.
const LOST: &str = "the device was lost while it was copied to";

/// Copies are whole words.
const WORD: usize = wgpu::COPY_BUFFER_ALIGNMENT as usize;

/// Of the devices that were opened here.
static OPENED: Mutex<Vec<(Device, Arc<Staging>)>> = Mutex::new(Vec::new());

/// What copies to a device pass through.
struct Staging {
    device: wgpu::Device,
    queue: wgpu::Queue,
    /// The one that was filled first is at the front.
    buffers: Mutex<VecDeque<Buffer>>,
}

/// One that a copy reads, or has read.
struct Buffer {
    buffer: wgpu::Buffer,
    read_by: wgpu::SubmissionIndex,
    /// Told when it is mapped again.
    mapped: Receiver<Result<(), wgpu::BufferAsyncError>>,
}

fn opened() -> MutexGuard<'static, Vec<(Device, Arc<Staging>)>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a device, unless it is open already: what it refuses is noted, and copies to it pass
/// through here.
pub(super) fn open(device: &Device) {
    let DispatchDevice::Cube(CubeDevice::Wgpu(wgpu)) = device.as_dispatch() else { return };
    let Ok(setup) = try_init_setup::<AutoGraphicsApi>(wgpu, RuntimeOptions::default()) else {
        return;
    };
    failures::listen(device, &setup.device);
    let WgpuSetup { device: own, queue, .. } = setup;
    let staging = Staging { device: own, queue, buffers: Mutex::default() };
    opened().push((device.clone(), Arc::new(staging)));
}

/// Copies bytes to words on a device, of which there are as many, and which nothing uses meanwhile;
/// none if it is no device that was opened here. The copy may still be under way when this returns.
///
/// # Errors
/// What the device says.
pub(super) fn upload(bytes: &[u8], words: &Tensor<1, Int>) -> Option<Result<(), String>> {
    let device = words.device();
    let staging = opened().iter().find(|(known, _)| *known == device)?.1.clone();
    // What a device refuses unwinds, and is noted.
    let copied = catch_unwind(AssertUnwindSafe(|| staging.upload(bytes, words)));
    Some(copied.unwrap_or_else(|_| {
        Err(failure(&device).unwrap_or_else(|| "a copy to the device failed".into()))
    }))
}

impl Staging {
    fn upload(&self, bytes: &[u8], words: &Tensor<1, Int>) -> Result<(), String> {
        let words =
            words.clone().try_into_primitive::<Cube>().map_err(|error| format!("{error:?}"))?;
        let client = &words.client;
        let to = client.get_resource::<WgpuServer<AutoCompiler>>(words.handle.clone());
        let to = to.map_err(|error| error.to_string())?;
        // Its memory may have been another tensor's: what still reads that goes first.
        client.flush().map_err(|error| error.to_string())?;
        // One copy at a time: all pass over one bus.
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = to.resource().offset;
        for bytes in bytes.chunks(BUFFER) {
            let buffer = self.mapped(&mut buffers)?;
            fill(&buffer, bytes)?;
            buffers.push_back(self.copy(buffer, bytes.len(), to.resource(), at));
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// A buffer that is mapped: a new one while there are few and all are being read, else the one
    /// that was filled first.
    fn mapped(&self, buffers: &mut VecDeque<Buffer>) -> Result<wgpu::Buffer, String> {
        let _ = self.device.poll(wgpu::PollType::Poll);
        let done = buffers.front().map(|first| first.mapped.try_recv());
        match done {
            Some(Ok(result)) => result.map_err(|error| error.to_string())?,
            Some(Err(TryRecvError::Empty)) if buffers.len() == BUFFERS => {
                let first = buffers.front().expect("there are some");
                let submission_index = Some(first.read_by.clone());
                // It returns once the copy is done; a device that is lost never maps it.
                let done =
                    self.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
                done.map_err(|error| error.to_string())?;
                let mapped = first.mapped.recv_timeout(PATIENCE);
                mapped.map_err(|_| LOST)?.map_err(|error| error.to_string())?;
            }
            Some(Err(TryRecvError::Disconnected)) => return Err(LOST.into()),
            None | Some(Err(TryRecvError::Empty)) => {
                return Ok(self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("copies to the device"),
                    size: BUFFER as u64,
                    usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                    mapped_at_creation: true,
                }));
            }
        }
        Ok(buffers.pop_front().expect("there are some").buffer)
    }

    /// Has the device read a buffer, and maps it again when that is done.
    fn copy(&self, buffer: wgpu::Buffer, len: usize, to: &WgpuResource, at: u64) -> Buffer {
        buffer.unmap();
        let mut commands = self.device.create_command_encoder(&Default::default());
        let len = len.next_multiple_of(WORD) as u64;
        commands.copy_buffer_to_buffer(&buffer, 0, &to.buffer, at, len);
        let read_by = self.queue.submit([commands.finish()]);
        let (is_mapped, mapped) = channel();
        buffer.map_async(wgpu::MapMode::Write, .., move |result| {
            // Nobody listens if the buffer is gone.
            let _ = is_mapped.send(result);
        });
        Buffer { buffer, read_by, mapped }
    }
}

/// Fills a mapped buffer from its beginning, and the rest of the last word with zeros.
fn fill(buffer: &wgpu::Buffer, bytes: &[u8]) -> Result<(), String> {
    let failed = Mutex::new(Ok(()));
    let pieces = (0u64..).step_by(PIECE).zip(bytes.chunks(PIECE));
    loops::share(pieces, |(start, piece)| {
        let end = start + piece.len().next_multiple_of(WORD) as u64;
        match buffer.get_mapped_range_mut(start..end) {
            Ok(mut to) => {
                to.slice(..piece.len()).copy_from_slice(piece);
                to.slice(piece.len()..).fill(0);
            }
            Err(error) => {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error.to_string());
            }
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}
