//! Memory cgroups.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A memory cgroup of this test's own; removed when dropped.
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// A cgroup that may take `limit` bytes, if the system lets us make one.
    pub fn new(limit: u64) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("outsize-budget-{}-{number}", std::process::id());
        for (root, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).is_dir() || std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let cgroup = Self { folder };
            if std::fs::write(cgroup.folder.join(file), limit.to_string()).is_ok() {
                return Some(cgroup);
            }
        }
        None
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The most that it held, page cache and the kernel's own included, in bytes.
    pub fn peak(&self) -> Option<u64> {
        ["memory.max_usage_in_bytes", "memory.peak"]
            .iter()
            .find_map(|file| std::fs::read_to_string(self.folder.join(file)).ok())
            .and_then(|text| text.trim().parse().ok())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Only an empty one can be removed; the command has ended, the kernel may need a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
