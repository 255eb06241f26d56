# shellcheck shell=bash disable=SC2154 # variables of common.sh
# What a distribution of Kubernetes brings along so that drivers can take snapshots: the definitions of VolumeSnapshot and
# VolumeGroupSnapshot, and snapshot-controller. Both come out of the Go modules that it is built from. Sourced, never run.

snapshotter_module=github.com/kubernetes-csi/external-snapshotter

# Sets snapshot_manifests to a folder for kubectl apply -k.
build_snapshot_manifests() {
  local go=
  snapshot_manifests=$cache/manifests/snapshots-$(key_of "$(key_of_files "$harness/go/sidecars")" \
    "$(declare -f make_snapshot_manifests)")
  if [ ! -e "$snapshot_manifests" ]; then go=$(go_program); fi
  build_once "snapshot definitions" "$snapshot_manifests" make_snapshot_manifests "$go" "$(name_of_image snapshot-controller)"
}

# make_snapshot_manifests GO IMAGE FOLDER. One snapshot-controller on the control plane, which tests do not restart. With its
# default of five requests a second, the first of 60 snapshots waits for a minute, because each takes several requests.
make_snapshot_manifests() {
  local folder=$3
  mkdir -p "$folder"
  cp -r --no-preserve=mode "$(module_folder "$1" "$snapshotter_module/client/v8")/config/crd" "$folder/definitions"
  cp -r --no-preserve=mode "$(module_folder "$1" "$snapshotter_module/v8")/deploy/kubernetes/snapshot-controller" \
    "$folder/controller"
  cat >"$folder/kustomization.yaml" <<K
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [definitions, controller]
images: [{name: registry.k8s.io/sig-storage/snapshot-controller, newTag: ${2##*:}}]
replicas: [{name: snapshot-controller, count: 1}]
patches:
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: snapshot-controller, namespace: kube-system}
    spec:
      minReadySeconds: 0
      template:
        spec:
          nodeSelector: {node-role.kubernetes.io/control-plane: ""}
          tolerations: [{operator: Exists}]
          containers:
          - name: snapshot-controller
            args: [--v=5, --leader-election=true, --kube-api-qps=200, --kube-api-burst=400]
K
}

# module_folder GO MODULE: where the sources of a module of go/sidecars are.
module_folder() {
  cd "$harness/go/sidecars" || return
  GOFLAGS='' GOWORK=off "$1" mod download "$2"
  GOFLAGS='' GOWORK=off "$1" list -m -f '{{.Dir}}' "$2"
}

install_snapshots() {
  kubectl_of_cluster apply --server-side --kustomize "$snapshot_manifests"
  kubectl_of_cluster --namespace kube-system rollout status deployment/snapshot-controller --timeout=300s
}
