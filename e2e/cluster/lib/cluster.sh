# shellcheck shell=bash disable=SC2154 # variables of common.sh
# The cluster's nodes and what must be undone when one of them, or all, end. Sourced, never run.

cluster_folder=$cache/clusters/$cluster

# Only one script at a time creates or removes a cluster; a second one waits.
lock_cluster() {
  mkdir -p "$cache/locks"
  exec {cluster_lock}>"$cache/locks/cluster-$cluster"
  flock --nonblock "$cluster_lock" && return 0
  say "waiting for another up or down of cluster $cluster"
  flock "$cluster_lock"
}

# nodes_of_cluster [DOCKER_PS_OPTION...]: the names of the cluster's containers, control plane first.
nodes_of_cluster() {
  docker ps "$@" --filter "label=io.x-k8s.kind.cluster=$cluster" --format '{{.Names}}' | LC_ALL=C sort
}

# Loop devices belong to the kernel and not to a container, and all programs of the machine share them: never use
# `losetup -D`. Only the device and inode of the backing file identify the owner; its path is relative to the mount namespace
# of the container.
#
# filesystems_of_node NODE: device numbers ("0:57") of the file systems that only the running node has mounted, and of its
# root, which the engine mounts on the host too.
filesystems_of_node() {
  local process
  process=$(docker inspect --format '{{.State.Pid}}' "$1")
  [ "$process" != 0 ] || return 0
  awk '$5 == "/" { print $3 }' "/proc/$process/mountinfo"
  comm -13 <(awk '{ print $3 }' /proc/self/mountinfo | sort -u) <(awk '{ print $3 }' "/proc/$process/mountinfo" | sort -u)
}

# loops [LOOP]: a line for each attached loop device, or for one of them: its name, the kernel's number of this attachment, inode
# and file system of the backing file, and its path. The name alone is not enough to detach a device: after its last user has
# closed it, another program can attach it. Linux before 5.15 has no such number.
loops() {
  local loop inode filesystem path
  losetup --list --noheadings --output NAME,BACK-INO,BACK-MAJ:MIN,BACK-FILE "$@" 2>/dev/null |
    while read -r loop inode filesystem path; do
      echo "$loop $(cat "/sys/block/${loop#/dev/}/diskseq" 2>/dev/null || echo 0) $inode $filesystem $path"
    done
}

# Loop devices whose backing file is unlinked, so that no search finds its inode. The path that the kernel shows changes
# with the end of the mount through which the file was opened. So a line that disappears with the node was the node's, if the
# device is still attached to the same file.
unlinked_loops() { loops | grep '(deleted)$' || true; }

# detach_loops_of NODE UNLINKED_BEFORE FILESYSTEM...: detaches the loop devices whose backing file is on one of the
# node's file systems, in one of its volumes, or in a file system on a loop device of the node. The node must have ended,
# because its devices are in use before. All are found before any is detached: then no name of theirs belongs to somebody else
# already. A detach may fail, because the device of a pool ends with the last image in it.
detach_loops_of() {
  local node=$1 all loop number inode filesystem line found=1 ours=()
  local filesystems=" ${*:3} " asked=" "
  all=$(loops || true)
  while [ "$found" = 1 ]; do
    found=0
    while read -r loop number inode filesystem _; do
      [[ -n $loop && $asked != *" $loop "* ]] || continue
      [[ $filesystems == *" $filesystem "* ]] || in_volume_of "$node" "$inode" "$filesystem" || continue
      asked+="$loop "
      filesystems+="7:${loop#/dev/loop} "
      found=1
      ours+=("$loop $number $inode $filesystem")
    done <<<"$all"
  done
  while read -r line; do
    [ -z "$line" ] || ours+=("$line")
  done < <(
    comm -23 <(sort <<<"$2") <(sort <<<"$all") | cut -d ' ' -f 1-4
    # shellcheck disable=SC2086 # a list of words
    loops_of_kubelet "$all" $asked
  )
  for line in "${ours[@]}"; do
    # shellcheck disable=SC2086 # a list of words
    detach_loop "$node" $line || true
  done
}

# loops_of_kubelet LOOPS LOOP...: kubelet holds a raw block volume with another loop device over the volume's
# device. After a killed engine the node's file systems are unknown. But such a loop device has the size of the volume, and the
# path of its backing file, whose mount is gone, is "/".
loops_of_kubelet() {
  local loop number inode filesystem path volume
  while read -r loop number inode filesystem path; do
    [ "$path" = / ] || continue
    for volume in "${@:2}"; do
      [ "$(size_of_loop "$loop")" = "$(size_of_loop "$volume")" ] || continue
      echo "$loop $number $inode $filesystem"
      break
    done
  done <<<"$1"
}

# The size in sectors; 0 if the device is detached.
size_of_loop() { cat "/sys/block/${1#/dev/}/size"; }

# is_attached LOOP NUMBER INODE FILESYSTEM: whether the device is still attached as `loops` has printed it.
is_attached() {
  local loop number inode filesystem
  read -r loop number inode filesystem _ < <(loops "$1") || return 1
  [ "$*" = "$loop $number $inode $filesystem" ]
}

# detach_loop NODE LOOP NUMBER INODE FILESYSTEM
detach_loop() {
  is_attached "${@:2}" || return 0
  need_root "detaching $2 of $1"
  say "detaching $2 of $1"
  losetup --detach "$2"
}

# in_volume_of NODE INODE FILESYSTEM
in_volume_of() {
  local volume
  for volume in $(docker inspect --format '{{range .Mounts}}{{if eq .Type "volume"}}{{.Source}} {{end}}{{end}}' "$1"); do
    [ "$(mountpoint_device "$volume")" = "$3" ] || continue
    [ -z "$(find "$volume" -xdev -inum "$2" -print -quit)" ] || return 0
  done
  return 1
}

# The device number of the file system that a path is on, as losetup prints it.
mountpoint_device() { findmnt --noheadings --output MAJ:MIN --target "$1" | tr -d ' '; }

# end_node NODE SECONDS: ends all processes of the node, as a machine that loses power (0) or restarts.
end_node() {
  local filesystems unlinked
  unlinked=$(unlinked_loops)
  mapfile -t filesystems < <(filesystems_of_node "$1")
  docker stop --time "$2" "$1" >/dev/null
  detach_loops_of "$1" "$unlinked" "${filesystems[@]}"
}

start_node() {
  docker start "$1" >/dev/null
  make_loop_nodes "$1"
}

# The kernel makes loop devices beyond the first eight when they are opened, and a container has no udev that would make
# their nodes. (The harness' own node image makes them at its start; kind's official one does not.) This is retried,
# because a starting systemd kills other processes.
make_loop_nodes() {
  for _ in $(seq 120); do
    docker exec "$1" bash -c '
      for number in $(seq 0 127); do
        [ -b "/dev/loop$number" ] || mknod -m 660 "/dev/loop$number" b 7 "$number" || [ -b "/dev/loop$number" ] || exit
      done' && return 0
    sleep 0.5
  done
  say "the container of $1 has no loop devices; the end of its log:"
  docker logs --tail 20 "$1"
  return 1
}

kubectl_of_cluster() { "$(program_path kubectl)" --kubeconfig "$cluster_folder/kubeconfig" "$@"; }

# cluster_is_healthy: the cluster came up once, its four nodes run, and the nodes and system pods become Ready within two
# minutes.
cluster_is_healthy() {
  [ -e "$cluster_folder/complete" ] && [ "$(nodes_of_cluster 2>/dev/null | wc -l)" = 4 ] && wait_for_nodes_and_system 120s
}

# wait_for_nodes_and_system TIME
wait_for_nodes_and_system() {
  kubectl_of_cluster wait --for=condition=Ready nodes --all --timeout="$1" &&
    kubectl_of_cluster wait --for=condition=Ready pods --all --namespace kube-system --timeout="$1"
}

# remove_cluster: removes all existing parts of the cluster. Needs no program that the harness builds.
remove_cluster() {
  local node
  for node in $(nodes_of_cluster --all); do
    end_node "$node" 0
  done
  for node in $(nodes_of_cluster --all); do
    docker rm --force --volumes "$node" >/dev/null
  done
  if docker network inspect "$cluster" >/dev/null 2>&1; then docker network rm "$cluster" >/dev/null; fi
  rm -rf "$cluster_folder"
}

# take_down: removes the cluster, and the private engine if no container uses it.
take_down() {
  use_engine
  may_have_clusters || return 0
  start_engine
  step "removing cluster $cluster" remove_cluster
  leave_engine
}
