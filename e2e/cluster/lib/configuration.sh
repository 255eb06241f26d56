# shellcheck shell=bash disable=SC2154 # variables of common.sh
# kind's configuration of the cluster, of documented fields only. Sourced, never run.

# kind writes kubeadm's v1beta3 for Kubernetes before 1.36. There, arguments are a map, programs have no variables of their
# environment, and CoreDNS cannot be left out.
has_v1beta4() {
  local minor
  minor=$(kubernetes_version)
  minor=${minor#v1.}
  [ "${minor%%.*}" -ge 36 ]
}

# settings_of_program [ARGUMENT VALUE]...: prints the fields of one of the control plane's programs. Fields that it does not
# print are those of kind.
settings_of_program() {
  local arguments=() fields=()
  while [ $# != 0 ]; do
    if has_v1beta4; then arguments+=("{name: $1, value: \"$2\"}"); else arguments+=("$1: \"$2\""); fi
    shift 2
  done
  local IFS=,
  if has_v1beta4; then
    [ "${#arguments[@]}" = 0 ] || fields+=("extraArgs: [${arguments[*]}]")
    fields+=('extraEnvs: [{name: GOGC, value: "400"}]')
  else
    fields+=("extraArgs: {${arguments[*]}}")
  fi
  echo "{${fields[*]}}"
}

# The defaults only make tests wait: kubelet reads volume statistics and checks for expansions once a minute, and with 20
# requests a second the controller manager binds four claims a second. etcd need not survive a power failure. GOGC=400 saves
# processor time, which a small machine lacks, at the cost of memory. CSIVolumeHealth, off by default, lets kubelet report
# volumes that their driver calls abnormal.
configuration() {
  cat <<C
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
name: $cluster
featureGates: {$(sed 's/=/: /g; s/,/, /g' <<<"${CISTERN_FEATURE_GATES:-}")}
nodes:
- role: control-plane
- role: worker
- role: worker
- role: worker
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  volumeStatsAggPeriod: 5s
  syncFrequency: 10s
  maxPods: 250
  featureGates: {CSIVolumeHealth: true}
- |
  kind: ClusterConfiguration
  controllerManager: $(settings_of_program kube-api-qps 200 kube-api-burst 400)
  apiServer: $(settings_of_program)
  scheduler: $(settings_of_program)
  etcd: {local: $(settings_of_program unsafe-no-fsync true)}
$(cluster_patch)
C
}
