# shellcheck shell=bash disable=SC2154,SC2034 # variables of common.sh, and for the scripts
# The way without a registry: a private docker engine, and images made from Debian packages and Go modules. It defines what
# lib/way.sh of e2e/cluster asks for. Sourced, never run.

offline=$checkout/e2e/offline
source "$offline/lib/engine.sh"
source "$offline/lib/images.sh"

node_programs=(kubeadm kubelet kubectl containerd containerd-shim-runc-v2 ctr crictl)
image_programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy
  csi-provisioner csi-resizer csi-snapshotter snapshot-controller)

packages_of_nodes() { echo busybox-static ca-certificates docker.io gcc iptables jq libc6-dev mmdebstrap openssh-client procps python3 runc util-linux zstd; }
programs_of_nodes() { echo "${node_programs[@]}" "${image_programs[@]}"; }
programs_of_suite() { echo agnhost; }
kind_arguments=()
images_archive=

# Nothing in the tests asks for a name of the cluster, so CoreDNS is neither built nor run. All versions of Kubernetes run
# with one version of etcd.
cluster_patch() {
  local etcd
  etcd=$(name_of_image etcd)
  cat <<P
- |
  kind: ClusterConfiguration
  etcd: {local: {imageTag: ${etcd##*:}}}
P
  if has_v1beta4; then echo '  dns: {disabled: true}'; fi
}

complete_cluster() {
  has_v1beta4 || kubectl_of_cluster --namespace kube-system delete deployment coredns
}

prepare_nodes() {
  use_engine
  build_node_image
  kind_arguments=(--image "$node_image")
}

prepare_suite() {
  use_engine
  build_suite_images
}

prepare_postgresql() {
  use_engine
  build_postgresql_image
}
