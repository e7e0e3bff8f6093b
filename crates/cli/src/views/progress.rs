//! Progress of long work: on standard error, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a bar that follows a count looks at it.
const LOOK: Duration = Duration::from_millis(100);

/// A bar over `total` bytes.
pub fn bytes(total: u64, what: &str) -> ProgressBar {
    const COUNTS: &str =
        "{decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    bar(total, what, COUNTS)
}

/// A bar over a count.
pub fn count(total: u64, what: &str) -> ProgressBar {
    bar(total, what, "{pos} of {len}")
}

/// A bar over steps that take their time.
pub fn steps(total: u64) -> ProgressBar {
    let bar = bar(total, "step", "{pos} of {len}, {eta} left");
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

fn bar(total: u64, what: &str, counts: &str) -> ProgressBar {
    let style = style(&format!("{{msg}} [{{bar:30}}] {counts}"));
    ProgressBar::new(total).with_message(what.to_string()).with_style(style)
}

/// A line with the current activity and its duration.
pub fn activity() -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_style(style("{spinner} {wide_msg} {elapsed}"));
    bar.enable_steady_tick(LOOK);
    bar
}

fn style(template: &str) -> ProgressStyle {
    let ascii = super::style::style().ascii;
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars(if ascii { "#- " } else { "█▉▊▋▌▍▎▏ " })
        .tick_chars(if ascii { "|/-\\ " } else { "⠁⠂⠄⡀⢀⠠⠐⠈ " })
}

/// A bar that follows a count, until it is dropped.
pub struct Following(Option<(mpsc::Sender<()>, JoinHandle<()>)>);

impl Following {
    /// Follows `read` up to the bar's end.
    pub fn new(bar: ProgressBar, read: impl Fn() -> u64 + Send + 'static) -> Self {
        let total = bar.length().unwrap_or(0);
        if bar.is_hidden() {
            return Self(None);
        }
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                bar.set_position(read().min(total));
            }
            bar.finish_and_clear();
        });
        Self(Some((stop, thread)))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // It only draws; if that failed there is nothing to clear.
            let _ = thread.join();
        }
    }
}
