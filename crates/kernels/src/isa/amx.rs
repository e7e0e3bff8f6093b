//! Whether AMX may be used: the processor has it, the system saves its registers, and this process
//! is permitted to.

use std::arch::x86_64::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by [`Isa::assume_amx`](super::Isa::assume_amx).
static ASSUMED: AtomicBool = AtomicBool::new(false);

pub(super) fn assume() {
    ASSUMED.store(true, Ordering::Relaxed);
}

pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| match cfg!(feature = "amx-noop") {
        // Whoever builds with all features must not get results that mean nothing.
        true => std::env::var_os("OUTSIZE_AMX").is_some_and(|value| value == "noop"),
        false => has_instructions() && has_state() && is_permitted(),
    }) || ASSUMED.load(Ordering::Relaxed)
}

/// Says why a processor that has AMX is used without it, which nobody would see otherwise: other
/// loops run, and are slower.
fn refused(why: std::fmt::Arguments<'_>) -> bool {
    tracing::warn!("this processor has AMX, and it is not used: {why}");
    false
}

/// Whether the processor has tiles of sixteen rows of 64 bytes, eight of them, and products of bf16
/// on them.
fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 0x1d || __cpuid_count(7, 0).edx & (BF16 | TILE) != BF16 | TILE {
        return false;
    }
    // Palettes of tiles: the highest, and the sizes of the first.
    let (palettes, first) = (__cpuid_count(0x1d, 0), __cpuid_count(0x1d, 1));
    palettes.eax >= 1
        && first.eax >> 16 == 1024
        && first.ebx & 0xffff == 64
        && first.ebx >> 16 == 8
        && first.ecx & 0xffff == 16
}

/// Whether the system saves and restores tiles and their configuration: bits 18 and 17 of XCR0.
fn has_state() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILES: u64 = 0b11 << 17;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: the processor has XSAVE, and the system has switched it on, which is what OSXSAVE
    // says.
    let saved = unsafe { _xgetbv(0) & TILES };
    saved == TILES
        || refused(format_args!("the system, or the hypervisor under it, does not save tiles"))
}

/// Asks Linux for the use of tiles, once for all threads of the process, those that are there
/// already included, and for processes forked off later: tiles make what is saved of a thread
/// larger by 8 KiB, which not every program expects. Linux refuses if a thread has an alternate
/// stack for signals that could not hold that; Rust's own can (`AT_MINSIGSTKSZ`).
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: the system call `arch_prctl` with this request takes a number and touches no memory
    // of this process; `syscall` overwrites rcx and r11 besides its result.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
        || refused(format_args!(
            "Linux refused this process its registers: {}",
            std::io::Error::from_raw_os_error(-result as i32)
        ))
}

/// How other systems permit it is not known to this crate.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}
