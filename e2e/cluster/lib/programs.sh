# shellcheck shell=bash disable=SC2034,SC2154 # variables of common.sh
# The programs that are built from Go modules. Which there are, and in which versions, is said in go/*/go.mod: one
# module for each set of programs whose libraries agree. Sourced, never run.

# The module of Kubernetes' programs: the newest version, or the one that CISTERN_KUBERNETES names, such as 1.35.
kubernetes=kubernetes${CISTERN_KUBERNETES:+-$CISTERN_KUBERNETES}
[ -e "$harness/go/$kubernetes" ] || fail "CISTERN_KUBERNETES is $CISTERN_KUBERNETES; besides the default there are $(
  cd "$harness/go" && echo kubernetes-* | sed 's/kubernetes-//g'
)"

kubernetes_version() { module_version "$kubernetes" k8s.io/kubernetes/cmd/kubelet; }

programs_of() {
  case $1 in
  check) echo actionlint ;;
  host | vm | bench | browser | postgresql | images | release) ;;
  control-plane) echo etcd kube-apiserver kubectl ;;
  sanity) echo csi-sanity csi-snapshot-metadata ;;
  chart) echo helm ;;
  cluster) echo kind kubectl "$(programs_of_nodes)" ;;
  storage-suite) echo ginkgo e2e.test "$(programs_of_suite)" ;;
  *) fail "no group is called $1; there are check, host, vm, bench, browser, control-plane, sanity, chart, cluster, storage-suite, postgresql, images and release" ;;
  esac
}

# package_of PROGRAM: "MODULE_FOLDER PACKAGE", from the "tool" lines of the go.mod files.
package_of() {
  local program=$1 file folder package
  case $program in
  etcd) program=server/v3 ;; # the only one whose package is not called like the program
  e2e.test)
    echo "$kubernetes" k8s.io/kubernetes/test/e2e
    return 0
    ;;
  esac
  for file in "$harness"/go/*/go.mod; do
    folder=$(basename "$(dirname "$file")")
    [[ $folder != kubernetes* || $folder = "$kubernetes" ]] || continue
    package=$(sed -n "s|^\(tool\)\{0,1\}[[:space:]]*\([^ =]*/$program\)\$|\2|p" "$file")
    [ -n "$package" ] || continue
    echo "$folder $package"
    return 0
  done
  fail "no go.mod of $harness/go has a tool called $1"
}

# module_version FOLDER PACKAGE: the version of the required module that holds the package.
module_version() {
  awk -v package="$2/" '
    { sub(/^require /, "") }
    $2 ~ /^v[0-9]/ && index(package, $1 "/") == 1 && length($1) > length(module) { module = $1; version = $2 }
    END { print version }' "$harness/go/$1/go.mod"
}

# name_of_image PROGRAM: prints the official name of its image. The version is that of the Go module; etcd's images have a
# build number.
name_of_image() {
  local folder package version
  read -r folder package < <(package_of "$1")
  version=$(module_version "$folder" "$package")
  case $1 in
  etcd) echo "registry.k8s.io/etcd:${version#v}-0" ;;
  csi-* | snapshot-controller) echo "registry.k8s.io/sig-storage/$1:$version" ;;
  *) echo "registry.k8s.io/$1:$version" ;;
  esac
}

# program_path PROGRAM: where the built program is kept.
program_path() {
  local folder package
  read -r folder package < <(package_of "$1")
  echo "$cache/programs/$folder-$(key_of "$(key_of_files "$harness/go/$folder")" "$(declare -f go_build linker_flags)")/$1"
}

# linker_flags FOLDER PACKAGE: gives the programs the version that they report.
linker_flags() {
  local version
  version=$(module_version "$1" "$2")
  printf -- '-s -w'
  case $1 in
  kubernetes*)
    local minor=${version#v*.}
    printf -- ' -X k8s.io/component-base/version.%s' "gitVersion=$version" gitMajor=1 "gitMinor=${minor%%.*}" \
      gitTreeState=clean gitCommit=unknown
    ;;
  crictl) printf -- ' -X sigs.k8s.io/cri-tools/pkg/version.Version=%s' "$version" ;;
  containerd) printf -- ' -X github.com/containerd/containerd/v2/version.Version=%s' "$version" ;;
  *) printf -- ' -X main.version=%s' "$version" ;;
  esac
}

# go_build GO FOLDER PACKAGE OUTPUT. Niced, because a machine that builds this is in use for something else.
go_build() {
  local go=$1 folder=$2 package=$3 output=$4 command=(build)
  case $package in
  k8s.io/kubernetes/test/e2e) command=(test -c) ;;
  */containerd/*) command=(build -tags no_btrfs) ;;
  esac
  cd "$harness/go/$folder" || return
  CGO_ENABLED=0 GOFLAGS='' GOWORK=off nice -n 5 \
    "$go" "${command[@]}" -trimpath -ldflags "$(linker_flags "$folder" "$package")" -o "$output" "$package"
}

# download_modules PROGRAM...: starts the download of the modules of missing programs. Downloads wait for the network and
# builds for the processors, so this runs beside them. If it fails, the build downloads what it needs.
download_modules() {
  local program path folder go folders=()
  for program in "$@"; do
    path=$(program_path "$program")
    [ ! -e "$path" ] || continue
    read -r folder _ < <(package_of "$program")
    [[ " ${folders[*]} " == *" $folder "* ]] || folders+=("$folder")
  done
  [ ${#folders[@]} != 0 ] || return 0
  go=$(go_program)
  mkdir -p "$cache/logs"
  set -m
  for folder in "${folders[@]}"; do
    cd "$harness/go/$folder" && GOFLAGS='' GOWORK=off "$go" mod download
  done >"$cache/logs/downloads.log" 2>&1 </dev/null &
  in_background=$!
  set +m
}

build_programs() {
  local program path folder package go=
  for program in "$@"; do
    path=$(program_path "$program")
    [ ! -e "$path" ] || continue
    [ -n "$go" ] || go=$(go_program)
    read -r folder package < <(package_of "$program")
    build_once "$program $(module_version "$folder" "$package")" "$path" go_build "$go" "$folder" "$package"
  done
}
