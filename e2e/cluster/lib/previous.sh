# shellcheck shell=bash disable=SC2154 # variables of common.sh
# The previous version of Cistern, for the test of upgrades: a pinned commit of this repository, compiled once into the
# cache. Sourced, never run.

# The commit. Raise it to the commit of a release, or when a change breaks a promise of docs/versions.md on purpose: to any
# commit of main whose `make test` passed. It must be old enough that upgrades have something to do. Nothing else names it.
previous_commit=1a0cbee01b2d67e3cb8f4729c7b5879c563cea7b

# Sets previous to a folder with source/, which lacks what a build alone needs, and binaries/.
build_previous() {
  previous=$cache/previous/$previous_commit
  [ -e "$previous" ] || require_previous_commit
  build_once "Cistern of commit ${previous_commit:0:7}" "$previous" make_previous
}

require_previous_commit() {
  git -C "$checkout" cat-file -e "$previous_commit^{commit}" 2>/dev/null && return 0
  fail "the test of upgrades needs commit $previous_commit, which this clone does not have: fetch the history with" \
    "'git fetch --unshallow', or 'git fetch' if the clone is old (in CI: fetch-depth: 0)"
}

# make_previous FOLDER. The build shares nothing with the checkout's, and its target folder is removed. It is a debug build, as
# in all tests; without debug information it needs less time and disk space.
make_previous() {
  local target=$1.target
  mkdir -p "$1/source" "$1/binaries"
  git -C "$checkout" archive "$previous_commit" | tar --extract --directory "$1/source"
  cd "$1/source" || return
  CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false nice -n 5 \
    cargo build --locked --bin cistern-driver --bin cistern-operator
  mv "$target/debug/cistern-driver" "$target/debug/cistern-operator" "$1/binaries"
  rm -rf "$target"
}
