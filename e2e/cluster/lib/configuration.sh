# shellcheck shell=bash disable=SC2154 # variables of common.sh
# kind's configuration of the cluster, of documented fields only. Sourced, never run.

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
$(cluster_patch)
  controllerManager:
    extraArgs:
    - {name: kube-api-qps, value: "200"}
    - {name: kube-api-burst, value: "400"}
    extraEnvs: [{name: GOGC, value: "400"}]
  apiServer:
    extraEnvs: [{name: GOGC, value: "400"}]
  scheduler:
    extraEnvs: [{name: GOGC, value: "400"}]
  etcd:
    local:
      extraArgs:
      - {name: unsafe-no-fsync, value: "true"}
      extraEnvs: [{name: GOGC, value: "400"}]
C
}
