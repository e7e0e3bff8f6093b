//! AMX on hardware: the instruction matches the emulation of the other tests, tile registers belong
//! to a thread whatever interrupts it, permission is needed, and no product leaves tiles in use.
//! Without AMX all of these tests are skipped, and say so.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use std::arch::asm;
use std::arch::x86_64::_xgetbv;
use std::process::{Command, Output};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::amx::{Amx, Tile, multiplied, provide};
use common::{Dtype, Stored, bits, values};
use outsize_kernels::matmul::{Size, linear_into};
use outsize_kernels::{ActivationDtype, Isa};

/// Whether there are tiles but in this program's imagination.
fn on_hardware() -> bool {
    match provide() {
        Amx::Hardware => true,
        Amx::Emulation | Amx::None => {
            eprintln!("SKIPPED: this processor does not have AMX");
            false
        }
    }
}

/// From one row of a [`Tile`] to the next.
const ROW_BYTES: usize = 64;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

impl Configuration {
    /// For tiles 0 `[rows, columns]`, 1 `[rows, pairs]` and 2 `[pairs, columns]` of four bytes
    /// each.
    fn new([rows, columns, pairs]: [usize; 3]) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (tile, rows, dwords) in [(0, rows, columns), (1, rows, pairs), (2, pairs, columns)] {
            bytes[16 + 2 * tile] = 4 * dwords as u8;
            bytes[48 + tile] = rows as u8;
        }
        Self(bytes)
    }
}

/// # Safety
///
/// The processor has AMX, and this thread's tiles hold nothing that is needed.
unsafe fn configure(sizes: [usize; 3]) {
    let configuration = Configuration::new(sizes);
    // SAFETY: the caller's promise; 64 bytes are read.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
}

/// # Safety
///
/// Tile 0 is configured.
unsafe fn load(tile: &Tile) {
    // SAFETY: the caller's promise; a tile is at most as large.
    unsafe {
        asm!("tileloadd tmm0, [{} + {}]", in(reg) tile, in(reg) ROW_BYTES, options(nostack, readonly))
    };
}

/// # Safety
///
/// Tile 0 is configured.
unsafe fn store(tile: &mut Tile) {
    // SAFETY: the caller's promise; a tile is at most as large.
    unsafe {
        asm!("tilestored [{} + {}], tmm0", in(reg) tile, in(reg) ROW_BYTES, options(nostack))
    };
}

/// # Safety
///
/// The processor has AMX.
unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// [`multiplied`], by the processor.
///
/// # Safety
///
/// The processor has AMX, and this thread's tiles hold nothing that is needed.
unsafe fn multiplied_here(sizes: [usize; 3], sums: &Tile, a: &Tile, b: &Tile) -> Tile {
    let mut result = *sums;
    // SAFETY: the caller's promise; every tile is at most as large as what it is loaded from or
    // stored to.
    unsafe {
        configure(sizes);
        load(sums);
        asm!(
            "tileloadd tmm1, [{a} + {stride}]",
            "tileloadd tmm2, [{b} + {stride}]",
            "tdpbf16ps tmm0, tmm1, tmm2",
            a = in(reg) a,
            b = in(reg) b,
            stride = in(reg) ROW_BYTES,
            options(nostack, readonly)
        );
        store(&mut result);
        release();
    }
    result
}

/// Numbers of one kind, in the bytes of a tile.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// Sixteen rows of halves that `make` makes of random ones.
    fn tile(&mut self, make: impl Fn(u16) -> u16) -> Tile {
        std::array::from_fn(|_| {
            let mut row = [0; 64];
            for to in row.as_chunks_mut::<2>().0 {
                *to = make((self.next() >> 8) as u16).to_le_bytes();
            }
            row
        })
    }
}

/// A bf16 whose exponent is one of so many from `first` on.
fn of_exponents(first: u16, count: u16) -> impl Fn(u16) -> u16 {
    move |random| (random & 0x807f) | ((first + (random >> 7 & 0xff) % count) << 7)
}

fn numbers_of(tile: &Tile, [rows, columns, _]: [usize; 3]) -> Vec<f32> {
    let rows = tile[..rows].iter();
    rows.flat_map(|row| row.as_chunks().0[..columns].iter().map(|&at| f32::from_le_bytes(at)))
        .collect()
}

/// Two pairs that come to the least normal number, less `2⁻¹⁵⁰` or half of that.
fn edges() -> [[Tile; 2]; 2] {
    let bf16 = |exponent: u16| exponent << 7;
    [75, 76].map(|down| {
        let (mut a, mut b) = ([[0; 64]; 16], [[0; 64]; 16]);
        for (pair, exponent) in [(0, bf16(127 - 63)), (1, bf16(127 - down))] {
            let negative = (pair as u16) << 15;
            a[0][4 * pair..][..2].copy_from_slice(&exponent.to_le_bytes());
            let other = if pair == 0 { exponent } else { bf16(127 - 75) };
            b[pair][..2].copy_from_slice(&(other | negative).to_le_bytes());
        }
        [a, b]
    })
}

/// As every x86 processor does with a fused multiply-add that flushes to zero.
#[test]
fn the_emulation_rounds_before_it_takes_for_zero() {
    let sizes = [1, 1, 2];
    let sums = edges().map(|[a, b]| numbers_of(&multiplied(sizes, &[[0; 64]; 16], &a, &b), sizes));
    assert_eq!(sums, [[0.0], [f32::MIN_POSITIVE]]);
}

/// Numbers of all magnitudes, subnormal ones, infinite ones and none; sums that all but cancel;
/// products about the least normal number.
#[test]
fn an_instruction_makes_the_bits_of_the_emulation() {
    if !on_hardware() {
        return;
    }
    let kinds: [(&str, [(u16, u16); 3]); 6] = [
        ("any", [(0, 256); 3]),
        ("ordinary", [(118, 12), (118, 12), (118, 12)]),
        ("subnormal", [(0, 3), (0, 200), (0, 8)]),
        ("about the least product", [(60, 8), (60, 8), (0, 3)]),
        ("about the largest product", [(186, 8), (186, 8), (246, 9)]),
        ("nearly the same", [(127, 1), (127, 1), (127, 3)]),
    ];
    let mut random = Numbers(1);
    let mut compared = 0;
    for (kind, [a_exponents, b_exponents, sum_exponents]) in kinds {
        for round in 0..20 {
            let sizes = match round {
                0 => [16, 16, 16],
                1 => [1, 1, 1],
                _ => [(); 3].map(|()| random.next() as usize % 16 + 1),
            };
            let a = random.tile(of_exponents(a_exponents.0, a_exponents.1));
            let b = random.tile(of_exponents(b_exponents.0, b_exponents.1));
            let sums = random.tile(of_exponents(sum_exponents.0, sum_exponents.1));
            // SAFETY: the processor has AMX, and a test holds nothing in tiles.
            let here = unsafe { multiplied_here(sizes, &sums, &a, &b) };
            let [here_bits, emulated_bits] = [here, multiplied(sizes, &sums, &a, &b)]
                .map(|tile| bits(&numbers_of(&tile, sizes)));
            assert_eq!(here_bits, emulated_bits, "{kind}, {sizes:?}");
            compared += here_bits.len();
            // What lies beyond the tile is not written.
            for (row, (here, before)) in here.iter().zip(&sums).enumerate() {
                let written = if row < sizes[0] { 4 * sizes[1] } else { 0 };
                assert_eq!(here[written..], before[written..], "{kind}, {sizes:?}, row {row}");
            }
        }
    }
    for [a, b] in edges() {
        let (sizes, sums) = ([1, 1, 2], [[0; 64]; 16]);
        // SAFETY: as above.
        let here = unsafe { multiplied_here(sizes, &sums, &a, &b) };
        let want = multiplied(sizes, &sums, &a, &b);
        assert_eq!(numbers_of(&here, sizes), numbers_of(&want, sizes));
    }
    println!("{compared} sums, the same bits");
}

/// Tiles of ordinary numbers: sums, and two that are multiplied.
fn ordinary() -> [Tile; 3] {
    let mut random = Numbers(2);
    [(); 3].map(|()| random.tile(of_exponents(118, 12)))
}

/// A tile that no other thread has.
fn own(index: usize) -> Tile {
    std::array::from_fn(|row| std::array::from_fn(|at| (index * 89 + row * 64 + at) as u8))
}

/// Threads that give way to each other while their tiles are full find them as they were.
#[test]
fn tiles_outlast_other_threads() {
    if !on_hardware() {
        return;
    }
    let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from) + 3;
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        for index in 0..threads {
            let start = &start;
            scope.spawn(move || {
                let (tile, mut found) = (own(index), [[0; 64]; 16]);
                // Each is of another size, so that configurations would be mixed up too.
                let rows = 16 - index % 16;
                // SAFETY: the processor has AMX, and this thread uses no tiles but these.
                unsafe {
                    configure([rows, 16, 1]);
                    load(&tile);
                }
                start.wait();
                for _ in 0..200 {
                    // SAFETY: a call without arguments.
                    unsafe { libc::sched_yield() };
                }
                // SAFETY: as above.
                unsafe {
                    store(&mut found);
                    release();
                }
                assert_eq!(found[..rows], tile[..rows], "thread {index}");
                assert_eq!(found[rows..], [[0; 64]; 16][rows..], "thread {index}");
            });
        }
    });
}

/// Signals that were handled.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn use_tiles(_: i32) {
    let tile = own(200);
    // SAFETY: a handler begins without tiles, and the system brings back those of whom it
    // interrupted.
    let right = unsafe {
        multiplied_here([2, 3, 4], &own(201), &own(202), &own(203));
        configure([16, 16, 1]);
        load(&tile);
        let mut found = [[0; 64]; 16];
        store(&mut found);
        found == tile
    };
    HANDLED.fetch_add(usize::from(right), Ordering::Relaxed);
}

/// A signal's handler may use tiles, and whom it interrupts finds its own as they were.
#[test]
fn tiles_outlast_a_signal() {
    if !on_hardware() {
        return;
    }
    let (tile, mut found) = (own(7), [[0; 64]; 16]);
    // SAFETY: the structure may be zero, and the handler is one; a signal is sent to this thread,
    // which uses no tiles but these.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = use_tiles as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        configure([16, 16, 1]);
        load(&tile);
        for _ in 0..3 {
            libc::raise(libc::SIGUSR1);
        }
        store(&mut found);
        release();
    }
    assert_eq!(HANDLED.load(Ordering::Relaxed), 3);
    assert_eq!(found, tile);
}

/// A process that was forked off may use tiles as its parent may.
#[test]
fn a_forked_process_may_use_tiles() {
    if !on_hardware() {
        return;
    }
    let [sums, a, b] = ordinary();
    let want = multiplied([16; 3], &sums, &a, &b);
    // SAFETY: the child computes on its stack and ends; it takes no lock and no memory.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let right = multiplied_here([16; 3], &sums, &a, &b) == want;
            libc::_exit(i32::from(!right));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
}

/// Which registers of this thread the system has to save: tiles' configuration and tiles.
fn live_tiles() -> u64 {
    const TILES: u64 = 0b11 << 17;
    // SAFETY: processors with AMX have XSAVE and say what is in use.
    unsafe { _xgetbv(1) & TILES }
}

fn matmul(isa: Isa, seed: u64, size: Size) -> Vec<f32> {
    let x = values(size.m * size.k, seed);
    let stored = Stored::new(Dtype::Bf16, &values(size.n * size.k, seed + 1));
    let mut y = vec![f32::NAN; size.m * size.n];
    linear_into(isa, ActivationDtype::Bf16, &x, stored.weight(), size, &mut y);
    y
}

/// Tiles left in use would have the system save 8 KiB whenever it turns to another thread.
#[test]
fn no_product_leaves_tiles_in_use() {
    if !on_hardware() {
        return;
    }
    // SAFETY: the processor has AMX, and a test holds nothing in tiles.
    unsafe {
        configure([16, 16, 1]);
        load(&own(1));
        assert_ne!(live_tiles(), 0);
        release();
    }
    for m in [1, 40] {
        let size = Size { m, n: 4096, k: 256 };
        matmul(Isa::AmxBf16, 1, size);
        assert_eq!(live_tiles(), 0, "{m} rows");
        let live = rayon::broadcast(|_| live_tiles());
        assert!(live.iter().all(|&live| live == 0), "{m} rows: {live:x?}");
    }
}

/// Says which part of a test the program that this one starts is to run.
const CHILD: &str = "OUTSIZE_AMX_CHILD";

/// Runs one test of this file in a process of its own, as its child.
fn in_a_process(test: &str, prepare: impl FnOnce(&mut Command)) -> Output {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    prepare(&mut command);
    command.output().expect("a process")
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The registers that this process may use of those that it must ask for.
fn permitted() -> u64 {
    const ARCH_GET_XCOMP_PERM: i64 = 0x1022;
    let mut permitted = 0u64;
    // SAFETY: the call writes one number.
    let result =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &mut permitted) };
    assert_eq!(result, 0);
    permitted
}

/// Permission is asked for once, by whichever thread needs it, and holds for those that are there
/// already.
#[test]
fn one_permission_is_enough_for_all_threads() {
    const TILES: u64 = 1 << 18;
    if !is_child() {
        if on_hardware() {
            let output = in_a_process("one_permission_is_enough_for_all_threads", |_| ());
            assert!(output.status.success(), "{output:?}");
        }
        return;
    }
    let [sums, a, b] = ordinary();
    let want = multiplied([16; 3], &sums, &a, &b);
    let asked = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                asked.wait();
                // SAFETY: the processor has AMX, and this thread uses no tiles but these.
                let here = unsafe { multiplied_here([16; 3], &sums, &a, &b) };
                assert_eq!(here, want);
            });
        }
        assert_eq!(permitted() & TILES, 0, "before anybody asks");
        assert!(Isa::AmxBf16.is_available());
        assert_eq!(permitted() & TILES, TILES);
        asked.wait();
    });
}

/// A thread that wants its signals handled on a stack of its own which is too small for tiles keeps
/// the process from using them.
#[test]
fn a_small_stack_for_signals_refuses_tiles() {
    if !is_child() {
        if on_hardware() {
            let output = in_a_process("a_small_stack_for_signals_refuses_tiles", |_| ());
            assert!(output.status.success(), "{output:?}");
        }
        return;
    }
    let mut memory = vec![0u8; 4096];
    let small =
        libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    let mut before = libc::stack_t { ..small };
    // SAFETY: the memory outlives its use as a stack: the one before is put back.
    unsafe {
        assert_eq!(libc::sigaltstack(&small, &mut before), 0);
        assert!(!Isa::AmxBf16.is_available());
        assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
    }
    assert_eq!(Isa::detected(), Isa::Avx512Bf16);
}

/// Where a sandbox refuses the request, matmuls run in the next best instructions.
#[test]
fn without_permission_other_loops_run() {
    if is_child() {
        assert!(!Isa::AmxBf16.is_available());
        assert_eq!(Isa::detected(), Isa::Avx512Bf16);
        let size = Size { m: 3, n: 5, k: 70 };
        let y = matmul(Isa::detected(), 1, size);
        assert!(y.iter().all(|y| y.is_finite()));
        return;
    }
    if !on_hardware() {
        return;
    }
    let output = in_a_process("without_permission_other_loops_run", |command| {
        use std::os::unix::process::CommandExt;
        // SAFETY: the child makes two calls of the system before it becomes the program.
        unsafe { command.pre_exec(refuse_permission) };
    });
    assert!(output.status.success(), "{output:?}");
}

/// From here on `arch_prctl` with a request for registers fails, as in a sandbox that does not know
/// it.
fn refuse_permission() -> std::io::Result<()> {
    const ARCH_REQ_XCOMP_PERM: u32 = 0x1023;
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = 16;
    let load = |at| libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: at,
    };
    let unless = |value, over| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: over,
        k: value,
    };
    let give = |value| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: value,
    };
    let mut filter = [
        load(NUMBER),
        unless(libc::SYS_arch_prctl as u32, 3),
        load(FIRST_ARGUMENT),
        unless(ARCH_REQ_XCOMP_PERM, 1),
        give(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls read what they are given.
    let result = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program),
            failed => failed,
        }
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
