# shellcheck shell=bash disable=SC2034 # variables for the scripts
# Shared by all scripts of the harness: paths, timed and logged steps, and builds that run once. Sourced, never run.

harness=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
checkout=$(cd "$harness/../.." && pwd)
cache=${CISTERN_CACHE:-$HOME/.cache/cistern}
export cluster=${CISTERN_CLUSTER:-cistern}

# Messages go to stderr: the scripts' stdout is for other scripts to read.
say() { printf '%s\n' "$*" >&2; }

fail() {
  say "error: $*"
  exit 1
}

need_root() { [ "$(id -u)" = 0 ] || fail "$1 needs root"; }

# key_of TEXT...: a short key of all texts together.
key_of() { printf '%s\0' "$@" | sha256sum | cut -c1-16; }

# key_of_files PATH...: a short key of the files' names and contents; folders are taken with everything in them.
key_of_files() {
  find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sed "s|$harness/||; s|$checkout/||" | sha256sum | cut -c1-16
}

# The process group of the step that runs now, so that an interrupt ends it at once. Its leader is the step's subshell.
running_step=

# The process group of what runs beside the steps. It ends with the script.
in_background=

# step TITLE COMMAND...: runs the command in a process group of its own with its output in a log, and prints how long it
# took. The command may be a function; it runs in a subshell with errexit on, so never call step in a condition.
step() {
  local title=$1 started=$SECONDS status=0 log
  shift
  log=$cache/logs/${title//[^A-Za-z0-9.-]/_}.log
  mkdir -p "$cache/logs"
  printf '==> %s' "$title" >&2
  set -m
  (
    set -e
    "$@"
  ) >"$log" 2>&1 </dev/null &
  running_step=$!
  set +m
  wait "$running_step" || status=$?
  running_step=
  printf '  (%s s)\n' $((SECONDS - started)) >&2
  [ "$status" = 0 ] && return 0
  say "failed with status $status; the end of $log:"
  tail -n 30 "$log" >&2
  exit "$status"
}

# build_once TITLE PATH RECIPE...: makes PATH by running the recipe as a step, with the path to make as its last
# argument. An existing PATH is complete, because it is renamed to PATH only after the recipe succeeds. So PATH must
# contain a key of all inputs. Several scripts can run this concurrently.
build_once() {
  local title=$1 path=$2 lock
  shift 2
  [ -e "$path" ] && return 0
  mkdir -p "$(dirname "$path")" "$cache/locks"
  exec {lock}>"$cache/locks/${path//\//_}"
  flock "$lock"
  if [ ! -e "$path" ]; then
    rm -rf "$path.new"
    step "$title" "$@" "$path.new"
    mv "$path.new" "$path"
  fi
  exec {lock}>&-
}

# Scripts that must clean up define on_exit STATUS. It runs in a trap, where a bare "return" returns the status from before
# the trap: so all functions of the harness use "return 0".
on_exit() { :; }

finish() {
  local status=$?
  trap '' INT TERM
  if [ -n "$running_step" ]; then
    say
    kill -TERM -- "-$running_step" 2>/dev/null || true
    wait "$running_step" 2>/dev/null || true
    running_step=
  fi
  [ -z "$in_background" ] || kill -TERM -- "-$in_background" 2>/dev/null || true
  on_exit "$status"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
