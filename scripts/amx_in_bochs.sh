#!/bin/sh
# Runs tests of AMX on an emulated processor that has it: Bochs, as a Sapphire Rapids with two cores, boots Linux, whose first program runs the
# tests. It checks what no emulation of single instructions can: what they mean to somebody else, Linux's permission, and whose the registers
# are. It takes seven minutes on two busy cores.
#
#   scripts/amx_in_bochs.sh [TEST...]        tests of crates/kernels/tests, "amx_system amx contract matmul" if none is named
#
# It needs no rights and changes nothing outside of the folders target and WORK. It takes from ROOT, the folder of unpacked packages, or / where
# they are installed (Debian's names):
#
#   linux-image-amd64                        a kernel, 5.16 or later
#   isolinux syslinux-common genisoimage     what makes a disk that boots
#   bochsbios vgabios                        firmware
#   busybox-static                           the emulated machine's shell
#
# and BOCHS, a program of Bochs 3.0 that was built so (Debian 13 has the sources, `apt-get source bochs`; about three minutes):
#
#   patch -p1 < REPOSITORY/scripts/bochs-3.0-amx.patch
#   ./configure --with-nogui --enable-x86-64 --enable-smp --enable-cpu-level=6 --enable-avx --enable-evex --enable-amx --enable-cet \
#     --enable-pci --enable-long-phy-address --enable-memtype --enable-monitor-mwait --enable-handlers-chaining --enable-repeat-speedups \
#     --enable-fast-function-calls
#   make
#
# Packages of a later Debian are unpacked with `dpkg-deb -x PACKAGE.deb ROOT`.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
root=${ROOT:-}
bochs=${BOCHS:-bochs}
work=${WORK:-$repository/target/bochs}/machine
limit=${LIMIT:-1800} # seconds
tests=${*:-amx_system amx contract matmul}

fail() {
    echo "amx_in_bochs: $*" >&2
    exit 1
}

# The first of these files that there is.
first() {
    for file in "$@"; do
        if [ -f "$file" ]; then
            echo "$file"
            return
        fi
    done
    fail "none of $* is there: see the head of this script for the packages and for ROOT"
}

command -v "$bochs" >/dev/null || fail "no $bochs: set BOCHS to the program"
"$bochs" --help cpu 2>&1 | grep -q sapphire_rapids || fail "$bochs knows no processor with AMX: build it with --enable-amx"
kernel=$(first "$root"/boot/vmlinuz-*)
isolinux=$(first "$root/usr/lib/ISOLINUX/isolinux.bin")
ldlinux=$(first "$root/usr/lib/syslinux/modules/bios/ldlinux.c32")
bios=$(first "$root/usr/share/bochs/BIOS-bochs-latest")
vgabios=$(first "$root/usr/share/vgabios/vgabios.bin")
busybox=$(first "$root/bin/busybox" "$root/usr/bin/busybox")
genisoimage=$(first "$root/usr/bin/genisoimage")

rm -rf "$work"
mkdir -p "$work/disk" "$work/memory/bin" "$work/memory/tests" "$work/memory/proc" "$work/memory/sys" "$work/memory/dev" "$work/memory/tmp"

# The tests, and the libraries that they are linked to.
cd "$repository"
for test in $tests; do
    program=$(cargo test --release --workspace --test "$test" --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep "/$test-" | head -n 1)
    [ -n "$program" ] || fail "no test named $test"
    cp "$program" "$work/memory/tests/$test"
    ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$work/memory$(dirname "$library")"
        cp -L "$library" "$work/memory$library"
    done
done

cp "$busybox" "$work/memory/bin/busybox"
cat >"$work/memory/init" <<INIT
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox uname -sr
/bin/busybox grep -m 1 'model name' /proc/cpuinfo
echo "processors: \$(/bin/busybox grep -c ^processor /proc/cpuinfo)"
echo "flags: \$(/bin/busybox grep -m 1 ^flags /proc/cpuinfo | /bin/busybox grep -o 'amx[^ ]*' | /bin/busybox tr '\n' ' ')"
# Other instructions are tested on processors.
export OUTSIZE_TEST_ISA=AmxBf16
for test in $tests; do
    echo "== \$test"
    /tests/\$test --nocapture --test-threads=2 2>&1
    echo "== \$test: status \$?"
done
echo "== end"
# What was written takes its time on a serial line; a processor that sleeps may not wake here.
left=50000
while [ \$left -gt 0 ]; do left=\$((left - 1)); done
/bin/busybox poweroff -f
INIT
chmod +x "$work/memory/init"
(cd "$work/memory" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/disk/memory.gz"

cp "$kernel" "$work/disk/linux"
cp "$isolinux" "$ldlinux" "$work/disk/"
# Bochs does not come back from its firmware's mode with page tables of five levels.
cat >"$work/disk/isolinux.cfg" <<'CONFIG'
default linux
label linux
  kernel linux
  append initrd=memory.gz console=ttyS0 no5lvl quiet mitigations=off nokaslr tsc=reliable panic=-1
CONFIG
"$genisoimage" -quiet -o "$work/disk.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$work/disk"

cat >"$work/bochsrc" <<CONFIG
display_library: nogui
cpu: model=sapphire_rapids, count=2, ips=20000000, quantum=8
memory: guest=1024, host=1024
romimage: file=$bios
vgaromimage: file=$vgabios
pci: enabled=1, chipset=i440fx
ata0: enabled=1
ata0-master: type=cdrom, path="$work/disk.iso", status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev="$work/console"
log: $work/log
clock: sync=none
panic: action=fatal
error: action=report
info: action=report
debug: action=ignore
CONFIG

: >"$work/console"
started=$(date +%s)
timeout "$limit" "$bochs" -q -f "$work/bochsrc" >"$work/output" 2>&1 &
machine=$!
trap 'kill $machine 2>/dev/null' EXIT INT TERM
tail -n +1 -f "$work/console" --pid=$machine | tr -d '\r'
wait $machine || true
trap - EXIT INT TERM
echo "$(($(date +%s) - started)) seconds"

grep -q '== end' "$work/console" || fail "the machine did not come to its end: see $work/console, $work/log and $work/output"
! grep -q 'status [1-9]' "$work/console" || fail "a test failed"
! grep -q 'SKIPPED: this processor does not have AMX' "$work/console" || fail "a test found no AMX"
