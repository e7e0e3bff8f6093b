//! Progress of long work: on standard error, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar over `total` bytes, invisible where nobody would see it move.
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
