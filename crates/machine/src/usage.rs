//! Use of processors and disk, by this process and by others.

use crate::system::System;

/// Counts since the machine, or this process, began: of use as differences.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Processor time of all programs on this machine, in seconds.
    pub everybody: f64,
    /// Processor time of this process and of those that it started and waited for, in seconds.
    pub own: f64,
    /// Time that the host of a virtual machine gave to others, in seconds.
    pub stolen: f64,
    /// Bytes that this process, and those that it started and waited for, fetched from storage;
    /// none if the system does not report it.
    pub fetched: Option<u64>,
}

/// Parts of a second in which Linux counts processor time for programs (`USER_HZ`, the same on all
/// but old Alphas).
const TICKS: f64 = 100.0;

impl Usage {
    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let fetched = self.fetched.zip(earlier.fetched);
        Self {
            everybody: self.everybody - earlier.everybody,
            own: self.own - earlier.own,
            stolen: self.stolen - earlier.stolen,
            fetched: fetched.map(|(now, then)| now.saturating_sub(then)),
        }
    }

    /// Processor time of all others, in seconds: programs, and the system's own threads.
    pub fn others(&self) -> f64 {
        (self.everybody - self.own).max(0.0)
    }
}

/// The use so far; none if the system does not report it (`/proc/stat` on Linux).
pub fn usage() -> Option<Usage> {
    usage_of(&System::here())
}

fn usage_of(system: &System) -> Option<Usage> {
    let (everybody, stolen) = machine(&system.read("/proc/stat")?)?;
    Some(Usage {
        everybody,
        own: process(&system.read("/proc/self/stat")?)?,
        stolen,
        fetched: system.read("/proc/self/io").as_deref().and_then(fetched),
    })
}

/// Busy and stolen seconds. See `proc_stat(5)`.
fn machine(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let &[user, nice, system, _idle, _waiting, irq, softirq, ..] = &ticks[..] else {
        return None;
    };
    let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
    let stolen = ticks.get(7).copied().unwrap_or(0);
    Some((busy as f64 / TICKS, stolen as f64 / TICKS))
}

/// User and system time, own and of children. See `proc_pid_stat(5)`: the name in brackets may hold
/// anything.
fn process(text: &str) -> Option<f64> {
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = 0u64;
    for _ in 0..4 {
        ticks = ticks.saturating_add(fields.next()?.parse().ok()?);
    }
    Some(ticks as f64 / TICKS)
}

/// See `proc_pid_io(5)`.
fn fetched(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;
    use proptest::prelude::*;

    const STAT: &str =
        "cpu  1000 20 300 99999 55 4 6 70 8 0\ncpu0 500 10 150 5 5 2 3 35 4 0\nintr 5\n";
    const SELF: &str =
        "77 (a ) name (x) R 1 77 77 0 -1 4194304 100 200 3 4 50 60 7 8 20 0 3 0 12345\n";
    const IO: &str = "rchar: 9\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 1\n";

    #[test]
    fn time_and_bytes_are_counted() {
        let (_folder, system) =
            tree(&[("/proc/stat", STAT), ("/proc/self/stat", SELF), ("/proc/self/io", IO)]);
        let usage = usage_of(&system).unwrap();
        assert_eq!(usage, Usage { everybody: 13.3, own: 1.25, stolen: 0.7, fetched: Some(4096) });
        let later = Usage { everybody: 15.3, own: 1.75, fetched: Some(5000), ..usage };
        let since = later.since(&usage);
        assert!((since.others() - 1.5).abs() < 1e-9, "{since:?}");
        assert_eq!(since.fetched, Some(904));
        assert_eq!(later.since(&Usage::default()).fetched, None);
    }

    #[test]
    fn what_the_system_does_not_say_is_nothing() {
        let (_folder, system) = tree(&[("/proc/stat", STAT)]);
        assert_eq!(usage_of(&system), None);
        let (_folder, system) = tree(&[("/proc/stat", STAT), ("/proc/self/stat", SELF)]);
        assert_eq!(usage_of(&system).unwrap().fetched, None);
        for text in ["", "cpu ", "cpu  1 2 3 4 5 6\n", "cpu  1 2 x 4 5 6 7\n"] {
            assert_eq!(machine(text), None, "{text}");
        }
        for text in ["", "1 (a) R 1", "1 (a) R 1 2 3 4 5 6 7 8 9 10 11 12 x 14"] {
            assert_eq!(process(text), None, "{text}");
        }
        assert_eq!(machine("cpu  1 2 3 4 5 6 7"), Some((0.19, 0.0)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_used_some() {
        let usage = usage().unwrap();
        assert!(usage.everybody >= usage.own && usage.own >= 0.0, "{usage:?}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\PC|[cpu 0-9\\n()]){0,80}") {
            machine(&text);
            process(&text);
            fetched(&text);
        }
    }
}
