# shellcheck shell=bash disable=SC2154 # variables of common.sh
# A private docker engine with its own folders, socket and cgroup, which does not change the host's firewall and bridges.
# Sourced, never run.

engine_run=/run/cistern-harness # on /run, because the paths of unix sockets must be short
engine_data=$cache/engine
engine_process_pattern="^dockerd .*--pidfile $engine_run/dockerd.pid"

# Makes docker and kind use this engine. It need not run.
use_engine() {
  need_root "the private docker engine"
  if [ -z "${engine_lock:-}" ]; then
    mkdir -p "$cache/locks"
    exec {engine_lock}>"$cache/locks/engine"
    flock --shared "$engine_lock"
  fi
  export DOCKER_HOST=unix://$engine_run/docker.sock DOCKER_BUILDKIT=0 DOCKER_CONFIG=$cache/docker-client
}

# The process that `start_engine` started: its command line contains our pid file.
engine_process() { pgrep -f -- "$engine_process_pattern"; }

engine_answers() { docker version >/dev/null 2>&1; }

start_engine() {
  if engine_process >/dev/null && engine_answers; then return 0; fi
  step "docker engine" launch_engine
}

launch_engine() {
  local runtime=()
  mkdir -p "$engine_run" "$engine_data" "$DOCKER_CONFIG"
  echo '{}' >"$engine_run/config.json" # not the machine's /etc/docker/daemon.json
  # The pid file of a killed engine. If its number is in use, also by a zombie process, docker assumes a running engine.
  engine_process >/dev/null || rm -f "$engine_run/dockerd.pid"
  pgrep -f -- "^[^ ]*containerd --config $engine_run/exec/" >/dev/null || rm -f "$engine_run/exec/containerd/containerd.pid"
  note_new_folders
  raise_inotify_limit
  if lacks_resource_capability; then
    cp "$offline/lib/runc-without-resource" "$engine_run" # so that the engine does not depend on the checkout
    runtime=(--add-runtime "limited=$engine_run/runc-without-resource" --default-runtime limited)
  fi
  run_engine "${runtime[@]}" >"$cache/logs/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    sleep 0.2
    if engine_answers; then return 0; fi
    engine_process >/dev/null || break
  done
  tail -n 20 "$cache/logs/dockerd.log"
  return 1
}

# The engine outlives the step, which ends with its process group, and the script, whose locks it must not inherit.
run_engine() {
  exec {engine_lock}>&-
  if [ -n "${cluster_lock:-}" ]; then exec {cluster_lock}>&-; fi
  exec setsid dockerd --pidfile "$engine_run/dockerd.pid" --host "$DOCKER_HOST" --exec-root "$engine_run/exec" \
    --data-root "$engine_data" --config-file "$engine_run/config.json" "$@" \
    --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /cistern-harness \
    --bridge none --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false \
    --default-address-pool base=172.28.0.0/16,size=24
}

# Folders that docker creates outside its own. Those that did not exist before are removed with the engine.
note_new_folders() {
  local folder
  for folder in /lib/modules /run/containerd /run/docker /run/mount; do
    [ -e "$folder" ] || echo "$folder" >>"$engine_data/new-folders"
  done
}

remove_new_folders() {
  local folder
  [ -e "$engine_data/new-folders" ] || return 0
  while read -r folder; do
    [ ! -d "$folder" ] || find "$folder/" -depth \( -type d -empty -o -type s -path '/run/containerd/s/*' \) -delete
  done <"$engine_data/new-folders"
  rm "$engine_data/new-folders"
}

# Every node's systemd, kubelet and containerd takes inotify instances of the one root user, about 60 for a cluster; the
# kernel's default of 128 makes the third cluster's systemd fail at its start. The end of the engine restores the old limit.
raise_inotify_limit() {
  local file=/proc/sys/fs/inotify/max_user_instances wanted=1024
  [ "$(cat "$file")" -lt "$wanted" ] || return 0
  [ -e "$engine_data/inotify-limit" ] || cp "$file" "$engine_data/inotify-limit"
  echo "$wanted" >"$file"
}

restore_inotify_limit() {
  [ -e "$engine_data/inotify-limit" ] || return 0
  cat "$engine_data/inotify-limit" >/proc/sys/fs/inotify/max_user_instances
  rm "$engine_data/inotify-limit"
}

# CAP_SYS_RESOURCE is bit 24 of the bounding set.
lacks_resource_capability() {
  local bounding
  bounding=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
  [ $((0x$bounding >> 24 & 1)) = 0 ]
}

# Containers may remain without an engine, if it was killed or the machine restarted.
may_have_clusters() { engine_has_traces; }

engine_has_traces() {
  [ -e "$engine_run" ] || engine_process >/dev/null || compgen -G "$engine_data/containers/*" >/dev/null
}

# Stops the engine unless it has containers or another script uses it. Every script that uses it holds a shared lock.
leave_engine() {
  if [ -z "${engine_lock:-}" ] || ! engine_has_traces; then return 0; fi
  flock --exclusive --nonblock "$engine_lock" || return 0
  # The rest of an interrupted build.
  docker container prune --force --filter 'label!=io.x-k8s.kind.cluster' >/dev/null 2>&1 || true
  [ -z "$(docker ps --all --quiet 2>/dev/null)" ] || return 0
  step "stopping the docker engine" stop_engine
}

stop_engine() {
  local process
  for process in $(engine_process); do kill -TERM "$process"; done
  for _ in $(seq 100); do
    engine_process >/dev/null || break
    sleep 0.1
  done
  if engine_process >/dev/null; then fail "the docker engine does not stop; see $cache/logs/dockerd.log"; fi
  # The containerd and the containers' shims of a killed engine.
  for process in $(pgrep -f -- "^[^ ]*containerd[^ ]* .*$engine_run/exec/" || true); do kill -KILL "$process" 2>/dev/null || true; done
  remove_engine_traces
}

remove_engine_traces() {
  local mount hierarchy
  awk -v run="$engine_run/" -v data="$engine_data/" 'index($2 "/", run) == 1 || index($2 "/", data) == 1 { print $2 }' /proc/mounts |
    LC_ALL=C sort -r | while read -r mount; do umount -l "$mount"; done
  for hierarchy in /sys/fs/cgroup/cistern-harness /sys/fs/cgroup/*/cistern-harness; do
    [ ! -d "$hierarchy" ] || find "$hierarchy" -depth -type d -exec rmdir {} \;
  done
  rm -rf "$engine_run"
  restore_inotify_limit
  remove_new_folders
}
