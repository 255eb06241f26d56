# shellcheck shell=bash disable=SC2154,SC1090 # variables of common.sh; one of two files
# Chooses the way in which the cluster is made. There are two, and of either the scripts use these names alone:
#
#   use_engine           makes docker and kind use the way's engine
#   start_engine         starts it, where it is not the machine's
#   may_have_clusters    whether it can have a cluster; if not, there is nothing to remove
#   leave_engine         stops it if it was started and nothing needs it
#   packages_of_nodes, programs_of_nodes, programs_of_suite
#                        Debian packages and programs that are needed besides kind and kubectl
#   prepare_nodes        makes what the nodes consist of; sets kind_arguments
#   prepare_suite, prepare_postgresql
#                        make the images of Kubernetes' storage suite, and of PostgreSQL; set images_archive if they must be loaded
#   cluster_patch        prints patches of kubeadm's configuration
#   complete_cluster     changes a new cluster
#
# Sourced, never run.

# harness_kind: prints "registry" or "offline". An existing cluster keeps its kind.
harness_kind() {
  if [ -n "${CISTERN_HARNESS:-}" ]; then
    echo "$CISTERN_HARNESS"
  elif [ -e "$cache/clusters/$cluster/harness" ]; then
    cat "$cache/clusters/$cluster/harness"
  elif registry_works; then
    echo registry
  else
    echo offline
  fi
}

# Kubernetes' official images want cgroup version 2. The image is one that tests use.
registry_works() {
  [ -e /sys/fs/cgroup/cgroup.controllers ] && timeout 10 docker info >/dev/null 2>&1 &&
    timeout 60 docker pull --quiet docker.io/library/busybox:1.37 >/dev/null 2>&1
}

# Defines the names above, and sets kind_of_harness.
choose_way() {
  export KIND_EXPERIMENTAL_DOCKER_NETWORK=$cluster
  kind_of_harness=$(harness_kind)
  case $kind_of_harness in
  registry) source "$harness/lib/registry.sh" ;;
  offline) source "$checkout/e2e/offline/lib/way.sh" ;;
  *) fail "CISTERN_HARNESS must be registry or offline, not $kind_of_harness" ;;
  esac
}
