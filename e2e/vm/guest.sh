# shellcheck shell=bash disable=SC2154 # variables of common.sh
# A small virtual machine for tests: the kernel of Debian stable, cgroup v2, device-mapper, and a root who has every
# capability. Sourced, never run.
#
# The tools in it are this machine's. QEMU emulates the processor (no KVM is needed), and the guest starts from what is in its
# memory: nothing is mounted or bound on this machine, and the end of the process cleans up.

# shellcheck source=../cluster/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib/common.sh"
# shellcheck source=../cluster/lib/packages.sh
source "$harness/lib/packages.sh"

# The time limit of a guest in seconds: for all tests, and beside other steps on two processors.
deadline=7200
console=$cache/logs/vm-$(basename "$0")-console.log
work=
system=
# Variables of the tests in the guest.
guest_environment=
read -ra tool_packages < <(packages_of guest)

# The console is kept beside the steps' logs.
on_exit() {
  [ -n "$work" ] || return 0
  if [ -e "$work/console" ]; then mv "$work/console" "$console"; fi
  # The disk of run-killed.
  if mountpoint -q "$work/mount"; then umount --lazy "$work/mount"; fi
  rm -rf "$work"
  return 0
}

# The guest's system, and a folder for what is the run's own.
prepare_guest() {
  system=$cache/vm/$(key_of "$(dpkg-query -W "${tool_packages[@]}" busybox-static)" \
    "$(declare -f make_system make_root copy_tools copy_programs copy_udev copy_modules pack)")
  build_once "the guest's kernel and tools" "$system" make_system
  work=$(mktemp -d)
  make_root "$work/root"
}

# make_system FOLDER: the kernel, and an archive of the tools and modules that the guest's memory is filled with.
make_system() {
  local root=$1/root packages=$1/packages
  mkdir -p "$1"
  mmdebstrap --variant=extract --include=linux-image-cloud-amd64,lvm2,mdadm,udev bookworm "$packages"
  mv "$packages"/boot/vmlinuz-* "$1/kernel"
  make_root "$root"
  copy_udev "$packages" "$root"
  # Of a library that is in both, the newer one, which is this machine's.
  copy_tools "$root"
  copy_modules "$packages" "$root"
  pack "$root" >"$1/system.cpio"
  rm -rf "$root" "$packages"
}

# As Debian and Ubuntu have it: what belongs to /bin and its like lies below /usr.
make_root() {
  mkdir -p "$1"/usr/{bin,sbin,lib,lib64}
  ln -s usr/{bin,sbin,lib,lib64} "$1"
}

# xfs_scrub is not used, and would bring tens of megabytes of libraries.
copy_tools() {
  local tools=()
  mapfile -t tools < <(dpkg -L "${tool_packages[@]}" | grep -E '^/.*s?bin/' | grep -v xfs_scrub)
  copy_programs "$1" "${tools[@]}"
  cp /bin/busybox "$1/bin"
  ln -s ../bin/busybox "$1/sbin/modprobe"
}

# copy_programs ROOT PROGRAM...: each to where it is here, with the libraries that it loads.
copy_programs() {
  local libraries=()
  mapfile -t libraries < <(ldd "${@:2}" 2>/dev/null | grep -oE '/[^ ]+ \(' | cut -d ' ' -f 1 | sort -u)
  cp --parents "${@:2}" "${libraries[@]}" "$1"
}

# copy_udev PACKAGES ROOT: udev with Debian's rules, and the programs that the rules of LVM and md run. A test starts it. It is
# not installed on this machine, whose udev would then act on the devices of tests.
copy_udev() {
  local folder=lib/x86_64-linux-gnu libraries=() programs=(bin/udevadm sbin/lvm sbin/mdadm) program
  mapfile -t libraries < <(for program in "${programs[@]}"; do
    "$1/$folder/ld-linux-x86-64.so.2" --library-path "$1/$folder:$1/usr/$folder" --list "$1/$program"
  done | grep -oE "$1/[^ ]+" | sort -u)
  mkdir -p "$2/$folder"
  cp "${libraries[@]}" "$2/$folder"
  (cd "$1" && cp --parents "${programs[@]}" lib/udev/rules.d/*.rules "$2")
}

# copy_modules PACKAGES ROOT: what is not built into the kernel, with what it depends on. Two are checksums that a btrfs can
# be made with. Three are for LUKS with its default cipher, one is for snapshots of LVM, one for an array of one disk, and the last three for a network
# and a disk.
copy_modules() {
  local version module list=()
  version=$(ls "$1/lib/modules")
  busybox depmod -b "$1" "$version"
  cd "$1/lib/modules/$version"
  mkdir -p "$2/lib/modules/$version"
  for module in fuse loop xfs btrfs xxhash_generic blake2b_generic dm_crypt xts aesni_intel dm_snapshot raid1 virtio_pci virtio_net virtio_blk; do
    read -ra list < <(grep "/${module//_/[_-]}.ko:" modules.dep | tr -d :)
    cp --parents "${list[@]}" "$2/lib/modules/$version"
  done
  busybox depmod -b "$2" "$version"
}

# pack FOLDER: the archive that a kernel unpacks, with everything root's.
pack() { (cd "$1" && find . | busybox cpio -o -H newc -R 0:0); }

# build_host_tests ARTIFACTS: the tests of driver/host and driver/node, and what they start. The whole workspace, so that
# dependencies have the features that they have for the unit tests.
build_host_tests() {
  cd "$checkout"
  cargo test --workspace --features cistern-host/host-tests,cistern-node/host-tests --test host --test node --locked \
    --no-run --message-format json >"$1"
  cargo build --package failing-disk --locked --message-format json >>"$1"
}

# add_tests ARTIFACTS ARGUMENT...: the programs of a list by cargo, where cargo has put them (one starts the other by its
# path), and a script that runs those that are tests. A test that fails says why at once: the end may not come.
add_tests() {
  local test tests=() programs=()
  mapfile -t programs < <(grep -o '"executable":"[^"]*"' "$1" | cut -d '"' -f 4)
  mapfile -t tests < <(grep '"kind":\["test"\]' "$1" | grep -o '"executable":"[^"]*"' | cut -d '"' -f 4)
  copy_programs "$work/root" "${programs[@]}"
  {
    echo status=0
    for test in "${tests[@]}"; do
      printf '%q ' "$test" --test-threads 2 --nocapture "${@:2}"
      echo '|| status=1'
    done
    echo "exit \$status"
  } >"$work/root/tests"
}

# pack_memory: the system and the folder "root", with which the guest starts.
pack_memory() {
  cp "$checkout/e2e/vm/init" "$work/root/init"
  pack "$work/root" | cat "$system/system.cpio" - >"$work/memory"
}

# start_guest OPTION...: it ends by itself or at the deadline, and reboots only when its kernel panics.
start_guest() {
  timeout --kill-after 5 "$deadline" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 4096 \
    -nodefaults -no-user-config -no-reboot -display none \
    -chardev "stdio,id=console,signal=off,logfile=$work/console" -serial chardev:console \
    -kernel "$system/kernel" -initrd "$work/memory" -append "console=ttyS0 quiet panic=-1 oops=panic $guest_environment" "$@" </dev/null &
}

# run_guest COUNT OPTION...: runs the tests, of which at least COUNT must pass. The options are QEMU's.
run_guest() {
  set -m
  start_guest "${@:2}"
  running_step=$!
  set +m
  end_guest "$1"
}

# end_guest COUNT: waits for the end of the tests, of which at least COUNT must pass, so that a filter that matches no test
# fails.
end_guest() {
  local started=$SECONDS ended=0 status passed
  wait "$running_step" || ended=$?
  running_step=
  say "==> the guest  ($((SECONDS - started)) s; its console: $console)"
  [ "$ended" != 124 ] || fail "the tests have not ended after $deadline s"
  [ "$ended" = 0 ] || fail "QEMU ended with status $ended"
  status=$(sed -n 's/^tests ended with status \([0-9]*\).*/\1/p' "$work/console" | tail -n 1)
  [ -n "$status" ] || fail "the guest ended before its tests; did its kernel panic?"
  [ "$status" = 0 ] || exit "$status"
  passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$work/console" | awk '{ sum += $1 } END { print sum + 0 }')
  [ "$passed" -ge "$1" ] || fail "$passed tests have passed, and at least $1 have to"
}
