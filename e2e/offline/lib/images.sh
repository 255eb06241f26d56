# shellcheck shell=bash disable=SC2154 # variables of common.sh and programs.sh
# The images that the harness builds without a registry: the base image, the images of the control plane and of the
# sidecars, the nodes' image, and those of Kubernetes' storage suite and of other tests. Sourced, never run.

pause_version=3.10.2
suite_busybox=registry.k8s.io/e2e-test-images/busybox:1.37.0-1
# Each version of the storage suite names a version of agnhost.
case ${CISTERN_KUBERNETES:-} in
1.34) agnhost_version=2.56 ;;
1.35) agnhost_version=2.59 ;;
*) agnhost_version=2.63.0 ;;
esac
# The storage suite uses one image under all of these names; see images/suite/Dockerfile.
suite_images=(
  "registry.k8s.io/e2e-test-images/agnhost:$agnhost_version"
  registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0
  registry.k8s.io/e2e-test-images/nginx:1.15-4
)

postgresql_image=docker.io/library/postgres:15-bookworm # official: the tests name it

image_exists() { docker image inspect "$1" >/dev/null 2>&1; }

archive_path() { echo "$cache/images/$(key_of "$@" "$(cat "$offline/lib/make-image")")/${1//[\/:]/_}.tar"; }

# The paths of the archives that are built so far.
archives=()

# build_archive NAME ENTRYPOINT PART...: see make-image. The path of a file must contain a key of its content.
build_archive() {
  local path
  path=$(archive_path "$@")
  build_once "image $1" "$path" make_archive "$@"
  archives+=("$path")
}

make_archive() { python3 "$offline/lib/make-image" "${@: -1}" "${@:1:$#-1}"; }

# The manifests of kubeadm and of the sidecars name the programs by their official paths.
build_program_image() {
  local name path
  name=$(name_of_image "$1")
  path=$(program_path "$1")
  case $1 in
  kube-proxy) build_kube_proxy_image "$name" "$path" ;;
  etcd | kube-*) build_archive "$name" '' "usr/local/bin/$1=$path" ;;
  *) build_archive "$name" "/$1" "$1=$path" ;;
  esac
}

build_kube_proxy_image() {
  local root=$cache/images/kube-proxy-root
  root+=-$(key_of "$(key_of_files "$offline/images/kube-proxy")" "$2").tar
  build_once "file system of kube-proxy" "$root" make_kube_proxy_root "$2"
  build_archive "$1" '' "$root"
}

make_kube_proxy_root() {
  local context=$2.context container
  stage_context "$context" "$offline/images/kube-proxy" "$1"
  docker build --network host --tag cistern-harness/kube-proxy "$context"
  rm -rf "$context"
  container=$(docker create cistern-harness/kube-proxy /none)
  docker export --output "$2" "$container"
  docker rm "$container"
}

# stage_context FOLDER SOURCE FILE...: a build context of links.
stage_context() {
  rm -rf "$1"
  cp -a "$2" "$1"
  [ $# = 2 ] || cp -lf "${@:3}" "$1"
}

# build_busybox_image NAME: Debian's busybox with a link for each of its programs.
build_busybox_image() {
  local program parts busybox
  busybox=$cache/programs/busybox-$(key_of_files /bin/busybox)/busybox
  build_once busybox "$busybox" cp /bin/busybox
  parts=("bin/busybox=$busybox")
  for program in $(/bin/busybox --list); do
    [ "$program" = busybox ] || parts+=("bin/$program@busybox")
  done
  build_archive "$1" '' "${parts[@]}"
}

build_pause_image() {
  local program
  program=$cache/programs/pause-$(key_of_files "$offline/images/pause.c")/pause
  build_once pause "$program" compile_pause
  build_archive "registry.k8s.io/pause:$pause_version" /pause "pause=$program"
}

compile_pause() { gcc -static -Os -Wall -Wextra -o "$1" "$offline/images/pause.c"; }

# The images that every node has from the start.
build_preloaded_images() {
  local program
  for program in "${image_programs[@]}"; do build_program_image "$program"; done
  build_pause_image
  build_busybox_image docker.io/library/busybox:1.37
  build_busybox_image "$suite_busybox"
}

# The base image of all Dockerfiles, built from Debian packages because there is no registry.
build_base_image() {
  local key
  key=$(key_of "$(declare -f make_base)")
  build_once "Debian's base system" "$cache/images/debian-$key.tar" make_base
  image_exists "cistern-harness/debian:$key" || step "base image" import_base "$cache/images/debian-$key.tar" "$key"
}

# apt is configured as in the official image, so that no layer contains package lists or archives.
make_base() {
  local settings='Acquire::Languages "none"; APT::Keep-Downloaded-Packages "false"; Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";'
  # shellcheck disable=SC2016 # mmdebstrap gives its hooks the folder as $1
  mmdebstrap --variant=minbase --format=tar --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -f "$1"/var/cache/apt/*.bin' \
    --customize-hook="echo '$settings' >\"\$1/etc/apt/apt.conf.d/docker-clean\"" bookworm "$1"
}

import_base() {
  docker import "$1" debian:bookworm-slim
  docker tag debian:bookworm-slim "cistern-harness/debian:$2"
}

# Sets node_image to the name of the nodes' image, whose tag is a key of its inputs.
build_node_image() {
  local program programs=()
  start_engine
  build_base_image
  build_preloaded_images
  for program in "${node_programs[@]}"; do programs+=("$(program_path "$program")"); done
  node_image=cistern-harness/node:$(key_of "$(key_of_files "$offline/images/node")" "${archives[@]}" "${programs[@]}")
  image_exists "$node_image" || step "node image" make_node_image
}

make_node_image() {
  local context=$cache/images/node-context
  stage_context "$context" "$offline/images/node"
  mkdir "$context/programs" "$context/images"
  cp -l "${programs[@]}" "$context/programs"
  cp -l "${archives[@]}" "$context/images"
  docker build --network host --tag "$node_image" "$context"
  rm -rf "$context"
}

# Sets images_archive to the images of Kubernetes' storage suite.
build_suite_images() {
  start_engine
  build_base_image
  images_archive=$cache/images/storage-suite-$(key_of "$(key_of_files "$offline/images/suite")" "$(program_path agnhost)" \
    "${suite_images[@]}").tar
  build_once "images of the storage suite" "$images_archive" make_suite_archive
}

make_suite_archive() {
  local context=$1.context
  stage_context "$context" "$offline/images/suite" "$(program_path agnhost)"
  docker build --network host "${suite_images[@]/#/--tag=}" "$context"
  rm -rf "$context"
  docker save --output "$1" "${suite_images[@]}"
}

# Sets images_archive to the image of PostgreSQL.
build_postgresql_image() {
  start_engine
  build_base_image
  images_archive=$cache/images/postgresql-$(key_of "$(key_of_files "$offline/images/postgresql")" "$postgresql_image").tar
  build_once "image of PostgreSQL" "$images_archive" make_postgresql_archive
}

make_postgresql_archive() {
  docker build --network host --tag "$postgresql_image" "$offline/images/postgresql"
  docker save --output "$1" "$postgresql_image"
}
