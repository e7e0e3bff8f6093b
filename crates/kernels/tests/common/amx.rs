//! AMX for processors that have none: the instructions of the loops, carried out one by one.
//!
//! Such a processor raises SIGILL at each of them. The handler here reads what stands there, does
//! what Intel's manual says (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
//! 2, and the instruction set extensions reference for the encodings), and goes on behind it. What
//! the manual forbids ends the process with a message.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use outsize_kernels::Isa;

/// What carries AMX instructions out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amx {
    Hardware,
    Emulation,
    /// Neither: the loops need AVX-512 besides.
    None,
}

/// Makes AMX available, by emulation if it must be, and says so.
pub fn provide() -> Amx {
    static PROVIDED: OnceLock<Amx> = OnceLock::new();
    *PROVIDED.get_or_init(|| {
        if Isa::AmxBf16.is_available() {
            eprintln!("AMX: ON HARDWARE");
            return Amx::Hardware;
        }
        if !Isa::Avx512Bf16.is_available() {
            eprintln!("SKIPPED: no AMX, and no AVX-512 with bf16, which its loops need even on an emulation");
            return Amx::None;
        }
        if is_there() {
            eprintln!("SKIPPED: the system does not permit AMX, which this processor has: no emulation is asked");
            return Amx::None;
        }
        eprintln!("AMX: ON AN EMULATION, this processor does not have it");
        install();
        // SAFETY: the handler that was just installed carries out the instructions.
        unsafe { Isa::assume_amx() };
        Amx::Emulation
    })
}

/// Whether the processor carries the instructions out, for who may use them.
fn is_there() -> bool {
    // Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID: AMX-TILE.
    std::arch::x86_64::__cpuid_count(7, 0).edx >> 24 & 1 == 1
}

/// What a tile register holds.
pub type Tile = [[u8; 64]; 16];

/// `sums` and the products of `a` and `b`, as the emulation makes them: `rows` of `sums` and `a`,
/// `columns` of `sums` and `b`, and so many `pairs` of elements in a row of `a`.
pub fn multiplied([rows, columns, pairs]: [usize; 3], sums: &Tile, a: &Tile, b: &Tile) -> Tile {
    let mut state = RELEASED;
    for (tile, rows, dwords) in [(0, rows, columns), (1, rows, pairs), (2, pairs, columns)] {
        (state.rows[tile], state.row_bytes[tile]) = (rows as u8, 4 * dwords as u16);
    }
    (state.tiles[0], state.tiles[1], state.tiles[2]) = (*sums, *a, *b);
    state.multiply(0, 1, 2);
    state.tiles[0]
}

/// Instructions that were emulated so far.
pub fn emulated() -> u64 {
    EMULATED.load(Ordering::Relaxed)
}

static EMULATED: AtomicU64 = AtomicU64::new(0);

fn install() {
    // SAFETY: the structure is one of numbers and may be zero; the handler has the signature that
    // SA_SIGINFO asks for.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut())
    };
    assert_eq!(result, 0, "a handler for SIGILL");
}

/// The registers of a thread.
struct State {
    configured: bool,
    rows: [u8; 8],
    row_bytes: [u16; 8],
    tiles: [Tile; 8],
}

const RELEASED: State =
    State { configured: false, rows: [0; 8], row_bytes: [0; 8], tiles: [[[0; 64]; 16]; 8] };

thread_local! {
    static STATE: UnsafeCell<State> = const { UnsafeCell::new(RELEASED) };
}

/// Ends the process: a signal handler cannot panic.
fn forbid(what: &str) -> ! {
    eprintln!("AMX emulation: {what}");
    std::process::abort()
}

extern "C" fn handle(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the interrupted thread, which nothing else refers
    // to, and the thread is interrupted at an AMX instruction of the loops: its state is not
    // borrowed.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const u8;
        match Instruction::read(at, registers) {
            Some(instruction) => {
                STATE.with(|state| instruction.run(&mut *state.get()));
                registers[libc::REG_RIP as usize] += instruction.length as i64;
                EMULATED.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                let bytes = std::slice::from_raw_parts(at, 8);
                forbid(&format!("not an instruction of the loops: {bytes:02x?}"));
            }
        }
    }
}

enum Operation {
    Configure(*const u8),
    Release,
    Zero(usize),
    Load(usize, *const u8, i64),
    Store(usize, *mut u8, i64),
    Multiply { sums: usize, a: usize, b: usize },
}

struct Instruction {
    operation: Operation,
    length: usize,
}

impl Instruction {
    /// # Safety
    ///
    /// `at` points to an instruction, with its registers as it finds them.
    unsafe fn read(at: *const u8, registers: &[i64; 23]) -> Option<Self> {
        // SAFETY: an instruction of these has five bytes at least, and no byte is read that does
        // not belong to it.
        let [vex, first, second, opcode, modrm] = unsafe { at.cast::<[u8; 5]>().read() };
        // A three-byte VEX prefix, map 0F38, W and L zero.
        if vex != 0xc4 || first & 0x1f != 2 || second & 0x84 != 0 {
            return None;
        }
        let extend = |bit: u8| usize::from(first >> bit & 1 == 0) * 8;
        let (more_reg, more_index, more_base) = (extend(7), extend(6), extend(5));
        let vvvv = usize::from(!second >> 3 & 15);
        let prefix = second & 3;
        let (mode, reg, rm) = (modrm >> 6, usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
        let in_registers = mode == 3;
        let tile = || match more_reg {
            0 => reg,
            _ => forbid("a tile register above 7"),
        };
        // SAFETY: as above.
        let memory = || unsafe { Memory::read(at, mode, rm, more_index, more_base, registers) };
        let (operation, length) = match (opcode, prefix, in_registers) {
            (0x49, 0, true) if (reg, rm) == (0, 0) => (Operation::Release, 5),
            (0x49, 3, true) if rm == 0 => (Operation::Zero(tile()), 5),
            (0x49, 0, false) if reg == 0 => {
                let memory = memory();
                let address = memory.base.wrapping_add(memory.index);
                (Operation::Configure(address as *const u8), memory.length)
            }
            // A load, and one that says that it is not needed again.
            (0x4b, 3 | 1, false) if rm == 4 => {
                let memory = memory();
                let from = memory.base as *const u8;
                (Operation::Load(tile(), from, memory.index), memory.length)
            }
            (0x4b, 2, false) if rm == 4 => {
                let memory = memory();
                let to = memory.base as *mut u8;
                (Operation::Store(tile(), to, memory.index), memory.length)
            }
            (0x5c, 2, true) => {
                if more_base != 0 || vvvv > 7 {
                    forbid("a tile register above 7");
                }
                let (sums, a, b) = (tile(), rm, vvvv);
                (Operation::Multiply { sums, a, b }, 5)
            }
            _ => return None,
        };
        Some(Self { operation, length })
    }

    /// # Safety
    ///
    /// The memory that the instruction names may be read or written.
    unsafe fn run(&self, state: &mut State) {
        if !state.configured
            && !matches!(self.operation, Operation::Configure(_) | Operation::Release)
        {
            forbid("tiles are not configured");
        }
        match self.operation {
            Operation::Release => *state = RELEASED,
            Operation::Zero(tile) => state.tiles[tile] = [[0; 64]; 16],
            Operation::Configure(from) => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { from.cast::<[u8; 64]>().read_unaligned() };
                *state = RELEASED;
                state.configure(&bytes);
            }
            Operation::Load(tile, from, stride) => {
                let (rows, row_bytes) = state.size(tile);
                state.tiles[tile] = [[0; 64]; 16];
                for (row, to) in state.tiles[tile][..rows].iter_mut().enumerate() {
                    let from = from.wrapping_offset(row as isize * stride as isize);
                    // SAFETY: the caller's promise.
                    unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), row_bytes) };
                }
            }
            Operation::Store(tile, to, stride) => {
                let (rows, row_bytes) = state.size(tile);
                for (row, from) in state.tiles[tile][..rows].iter().enumerate() {
                    let to = to.wrapping_offset(row as isize * stride as isize);
                    // SAFETY: the caller's promise.
                    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), row_bytes) };
                }
            }
            Operation::Multiply { sums, a, b } => state.multiply(sums, a, b),
        }
    }
}

/// An operand in memory.
struct Memory {
    /// Base and displacement.
    base: i64,
    /// Index times scale: for tiles, the bytes from one row to the next.
    index: i64,
    /// Bytes of the instruction.
    length: usize,
}

impl Memory {
    /// # Safety
    ///
    /// `at` points to an instruction with such an operand.
    unsafe fn read(
        at: *const u8,
        mode: u8,
        rm: usize,
        more_index: usize,
        more_base: usize,
        registers: &[i64; 23],
    ) -> Self {
        const NAMES: [i32; 16] = [
            libc::REG_RAX,
            libc::REG_RCX,
            libc::REG_RDX,
            libc::REG_RBX,
            libc::REG_RSP,
            libc::REG_RBP,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
        ];
        let value = |number: usize| registers[NAMES[number] as usize];
        let mut length = 5;
        let (mut base_number, mut index) = (rm, 0);
        if rm == 4 {
            // SAFETY: the caller's promise: this operand has a SIB byte.
            let sib = unsafe { at.add(length).read() };
            length += 1;
            base_number = usize::from(sib & 7);
            let number = usize::from(sib >> 3 & 7) + more_index;
            if number != 4 {
                index = value(number) << (sib >> 6);
            }
        }
        // Without a displacement, 5 means one of four bytes: from the next instruction, or alone
        // behind a SIB byte.
        let bare = mode == 0 && base_number == 5;
        // SAFETY: the caller's promise: the displacement is part of the instruction.
        let displacement = unsafe {
            match mode {
                1 => i64::from(at.add(length).cast::<i8>().read()),
                2 => i64::from(at.add(length).cast::<i32>().read_unaligned()),
                _ if bare => i64::from(at.add(length).cast::<i32>().read_unaligned()),
                _ => 0,
            }
        };
        length += match mode {
            1 => 1,
            2 => 4,
            _ if bare => 4,
            _ => 0,
        };
        let base = match bare {
            true if rm == 5 => at as i64 + length as i64,
            true => 0,
            false => value(base_number + more_base),
        };
        Self { base: base + displacement, index, length }
    }
}

impl State {
    fn configure(&mut self, bytes: &[u8; 64]) {
        let reserved = [&bytes[2..16], &bytes[32..48], &bytes[56..64]];
        if bytes[0] != 1 || bytes[1] != 0 || reserved.concat().iter().any(|&byte| byte != 0) {
            forbid("a configuration that is not palette 1 from row 0, or reserved bytes in it");
        }
        for tile in 0..8 {
            let row_bytes = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
            let rows = bytes[48 + tile];
            if row_bytes > 64 || rows > 16 || (row_bytes == 0) != (rows == 0) {
                forbid(
                    "a tile of more than 16 rows or 64 bytes, or with no rows or no bytes alone",
                );
            }
            (self.row_bytes[tile], self.rows[tile]) = (row_bytes, rows);
        }
        self.configured = true;
    }

    fn size(&self, tile: usize) -> (usize, usize) {
        let (rows, row_bytes) = (self.rows[tile].into(), self.row_bytes[tile].into());
        if rows == 0 {
            forbid("a tile that is not configured");
        }
        (rows, row_bytes)
    }

    /// TDPBF16PS.
    fn multiply(&mut self, sums: usize, a: usize, b: usize) {
        if sums == a || a == b || sums == b {
            forbid("a tile as two operands");
        }
        let ((m, n), (a_rows, a_bytes), (b_rows, b_bytes)) =
            (self.size(sums), self.size(a), self.size(b));
        if m != a_rows || n != b_bytes || a_bytes / 4 != b_rows || (n | a_bytes) % 4 != 0 {
            forbid("tiles whose sizes do not fit");
        }
        let sizes = [m, n / 4, a_bytes / 4];
        match is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512.
            true => unsafe { self.multiply_avx512(sizes, [sums, a, b]) },
            false => self.multiply_rows(sizes, [sums, a, b]),
        }
    }

    /// The same in vectors: the tests emulate millions of these.
    #[target_feature(enable = "avx512f")]
    fn multiply_avx512(&mut self, sizes: [usize; 3], tiles: [usize; 3]) {
        self.multiply_rows(sizes, tiles);
    }

    #[inline(always)]
    fn multiply_rows(&mut self, [rows, columns, pairs]: [usize; 3], [sums, a, b]: [usize; 3]) {
        let mut widened = [[[0.0f32; 16]; 2]; 16];
        for (pair, [even, odd]) in widened[..pairs].iter_mut().enumerate() {
            for column in 0..columns {
                (even[column], odd[column]) = two(&self.tiles[b][pair], column);
            }
        }
        for row in 0..rows {
            let [mut even, mut odd] = [[0.0f32; 16]; 2];
            for (pair, [v, w]) in widened[..pairs].iter().enumerate() {
                let (x, y) = two(&self.tiles[a][row], pair);
                add_products(columns, x, v, &mut even);
                add_products(columns, y, w, &mut odd);
            }
            let to = &mut self.tiles[sums][row];
            for column in 0..16 {
                let place: &mut [u8] = &mut to[4 * column..][..4];
                let mut sum = 0.0;
                if column < columns {
                    let before = f32::from_le_bytes([place[0], place[1], place[2], place[3]]);
                    sum = flushed(flushed(before) + flushed(even[column] + odd[column]));
                }
                place.copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

/// [`fma`] of each of the first `columns`.
#[inline(always)]
fn add_products(columns: usize, x: f32, values: &[f32; 16], sums: &mut [f32; 16]) {
    let mut fused = [0.0; 16];
    for column in 0..16 {
        fused[column] = x.mul_add(values[column], sums[column]);
    }
    // Zeros, and what is above the least normal number, are what they would be.
    let right = |sum: f32| (sum == 0.0) | (sum.abs() > f32::MIN_POSITIVE);
    if !fused.iter().fold(true, |all, &sum| all & right(sum)) {
        for column in 0..columns {
            fused[column] = fma(x, values[column], sums[column]);
        }
    }
    *sums = fused;
}

/// Pair `at` of a row of bf16, widened, subnormal numbers as zero.
fn two(row: &[u8; 64], at: usize) -> (f32, f32) {
    let one = |at: usize| {
        let bits = u16::from_le_bytes([row[at], row[at + 1]]);
        flushed(f32::from_bits(u32::from(bits) << 16))
    };
    (one(4 * at), one(4 * at + 2))
}

/// Fused, with zero for what is below the least normal number once it is rounded to 24 bits:
/// numbers just below it, which in memory would be rounded up to it, are zero too.
#[cold]
fn fma(a: f32, b: f32, sum: f32) -> f32 {
    /// Halfway from the least normal number to the one below it that has 24 bits.
    const LEAST: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);
    let (product, sum_64) = (f64::from(a) * f64::from(b), f64::from(sum));
    // The product of two bf16 is exact, and so are what `total` is short of and itself together.
    let total = product + sum_64;
    let rest = (product - (total - (total - product))) + (sum_64 - (total - product));
    let below = match total.abs() {
        least if least == LEAST => rest * total.signum() < 0.0,
        other => other < LEAST,
    };
    match below && total != 0.0 {
        true => 0.0f32.copysign(total as f32),
        false => a.mul_add(b, sum),
    }
}

/// Zero of the same sign for a subnormal number.
fn flushed(value: f32) -> f32 {
    match value.is_subnormal() {
        true => 0.0f32.copysign(value),
        false => value,
    }
}
