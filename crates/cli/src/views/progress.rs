//! Progress of long work: on standard error, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A bar over `total` bytes, hidden without a terminal.
pub fn bytes(total: u64, what: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_string());
    match ProgressStyle::with_template(
        "{msg} [{bar:30}] {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
    ) {
        Ok(style) => bar.with_style(style.progress_chars("█▉▊▋▌▍▎▏ ")),
        Err(_) => bar,
    }
}

/// A line with the current activity and its duration, hidden without a terminal.
pub fn activity() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    bar.enable_steady_tick(LOOK);
    match ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A bar over a count, hidden without a terminal.
pub fn count(total: u64, what: &str) -> ProgressBar {
    let bar = bytes(total, what);
    match ProgressStyle::with_template("{msg} [{bar:30}] {pos} of {len}") {
        Ok(style) => bar.with_style(style.progress_chars("█▉▊▋▌▍▎▏ ")),
        Err(_) => bar,
    }
}

/// How often a bar that follows a count looks at it.
const LOOK: Duration = Duration::from_millis(100);

/// A bar that follows a count, until it is dropped.
pub struct Following {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Following {
    /// Follows `read` up to the bar's end.
    pub fn new(bar: ProgressBar, read: impl Fn() -> u64 + Send + 'static) -> Self {
        let total = bar.length().unwrap_or(0);
        if bar.is_hidden() {
            return Self { stop: None, thread: None };
        }
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                bar.set_position(read().min(total));
            }
            bar.finish_and_clear();
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only draws; if that failed there is nothing to clear.
            let _ = thread.join();
        }
    }
}
