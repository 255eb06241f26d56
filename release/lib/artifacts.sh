# shellcheck shell=bash disable=SC2154 # variables of release/make and of common.sh
# The files of a release, and the images of the harness. The functions make_* write to $output. Sourced, never run.

# workspace_field NAME: a field of [workspace.package] in Cargo.toml, the only place of the version.
workspace_field() {
  sed -n "/^\[workspace.package\]/,/^\[[^w]/s/^$1 = \"\(.*\)\".*/\1/p" "$checkout/Cargo.toml"
}

# changes_of SECTION: prints what CHANGELOG.md lists in a section.
changes_of() {
  awk -v heading="## [$1]" '
    index($0, heading) == 1 { inside = 1; next }
    /^## / || /^\[[^]]*\]: / { inside = 0 }
    inside' "$checkout/CHANGELOG.md" | sed '/./,$!d'
}

# The image root of the harness' own builds, which need no newest packages. Sets image_root.
image_root() {
  image_root=$cache/images/root-$1-$(key_of_files "$checkout/release/image-root" "$checkout/release/unpack-packages")
  build_once "Debian's part of the images for $1" "$image_root" "$checkout/release/image-root" "$1"
}

# make_image TARGET: both architectures in one archive.
make_image() {
  local stages=() architecture
  for architecture in "${architectures[@]}"; do
    stages+=(--stage "$architecture:root=$work/$architecture/root" --stage "$architecture:builder=$work/$architecture/builder")
  done
  "$checkout/release/oci-image" --target "$1" --name "$images/$1:$version" --output "$output/cistern-$1-$version.oci.tar" \
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "SOURCE=$repository" "${stages[@]}"
}

# make_manifest FILE FOLDER...: folders of manifests/ in one file, with the images of this version. The overlay is made
# outside of the work tree; kustomize wants a relative path to it.
make_manifest() {
  local overlay=$work/overlay up folder
  mkdir -p "$overlay"
  up=$(realpath --relative-to="$(realpath "$overlay")" "$checkout/manifests")
  {
    printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n'
    for folder in "${@:2}"; do printf -- '- %s/%s\n' "$up" "$folder"; done
    printf 'images:\n'
    for image in driver operator; do
      printf -- '- {name: cistern.invalid/%s, newName: %s/%s, newTag: %s}\n' "$image" "$images" "$image" "$version"
    done
  } >"$overlay/kustomization.yaml"
  {
    printf '# Cistern %s:  kubectl apply --server-side -f %s\n' "$version" "$1"
    printf '# To remove Cistern, do not delete all that is in this file: it contains the definitions of pools and volumes.\n'
    "$kubectl" kustomize "$overlay"
  } >"$output/$1"
}

# reproducible_archive FOLDER [TAR_OPTION...] NAME...: prints a compressed archive of files and folders in a folder.
reproducible_archive() {
  tar --create --directory "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" \
    --format=gnu "${@:2}" | gzip --no-name -9
}

# The chart in charts/ has links to the manifests. The archive has files, and the images of this version.
make_chart() {
  local chart=$work/chart/cistern image
  mkdir -p "$work/chart"
  cp --recursive --dereference "$checkout/charts/cistern" "$chart"
  sed -i "s|^version: .*|version: ${version#v}|; s|^appVersion: .*|appVersion: $version|" "$chart/Chart.yaml"
  for image in driver operator; do
    sed -i "/^  $image:$/,/repository:/s|repository: \"\"|repository: $images/$image|" "$chart/values.yaml"
  done
  reproducible_archive "$work/chart" --exclude-from="$chart/.helmignore" cistern >"$output/cistern-chart-$version.tgz"
}

plugin_archive() { echo "kubectl-cistern-$version-linux-$1.tar.gz"; }

make_plugin() {
  local folder=$work/$1/plugin
  mkdir -p "$folder"
  cp "$work/$1/builder/kubectl-cistern" LICENSE "$folder"
  chmod 755 "$folder/kubectl-cistern"
  chmod 644 "$folder/LICENSE"
  reproducible_archive "$folder" kubectl-cistern LICENSE >"$output/$(plugin_archive "$1")"
}

# krew installs the plugin as `kubectl cistern`, from the archive whose checksum the manifest states.
make_krew_manifest() {
  local architecture archive
  cat <<MANIFEST >"$output/krew-cistern.yaml"
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: cistern
spec:
  version: $version
  homepage: $(workspace_field repository)
  shortDescription: Show pools, volumes and snapshots of Cistern
  description: |
    Shows the pools, volumes and snapshots of Cistern, the storage operator for the disks of a
    cluster's own nodes, with their claims and pods. Reports problems with remedies, and adopts or
    removes orphaned images.
  platforms:
MANIFEST
  for architecture in "${architectures[@]}"; do
    archive=$(plugin_archive "$architecture")
    cat <<PLATFORM >>"$output/krew-cistern.yaml"
  - selector:
      matchLabels:
        os: linux
        arch: $architecture
    uri: $repository/releases/download/$version/$archive
    sha256: $(sha256sum "$output/$archive" | cut -d ' ' -f 1)
    bin: kubectl-cistern
    files:
    - from: kubectl-cistern
      to: .
    - from: LICENSE
      to: .
PLATFORM
  done
}

# CycloneDX of the crates in each binary, and of the Debian packages in the images. cargo-cyclonedx writes beside each
# Cargo.toml, so it works on a copy of the manifests.
make_sbom() {
  local copy=$work/sbom crate
  mkdir -p "$copy"
  git ls-files -z -- Cargo.toml Cargo.lock '*/Cargo.toml' '*.rs' | tar --create --null --files-from=- | tar --extract --directory "$copy"
  (
    cd "$copy" || exit
    "$sbom_tool" cyclonedx --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu --override-filename sbom
  )
  for crate in driver operator kubectl-cistern; do
    jq --sort-keys . "$copy/$crate/sbom.json" >"$output/sbom-$crate.cdx.json"
  done
  for architecture in "${architectures[@]}"; do add_debian_packages "$architecture"; done
}

# add_debian_packages ARCHITECTURE: to the SBOMs of driver and operator.
add_debian_packages() {
  local file image folders packages
  for image in driver operator; do
    file=$output/sbom-$image.cdx.json
    folders=("$work/$1/root/libraries/var/lib/dpkg/status.d/")
    [ "$image" = operator ] || folders+=("$work/$1/root/tools/var/lib/dpkg/status.d/")
    packages=$(find "${folders[@]}" -type f -exec sed -n 's/^\(Package\|Version\): //p' {} \; | paste -d ' ' - - | sort -u |
      jq --raw-input --null-input --arg architecture "$1" '[inputs | split(" ") | {type: "library", name: .[0], version: .[1],
        purl: "pkg:deb/debian/\(.[0])@\(.[1] | @uri)?arch=\($architecture)&distro=bookworm"} | . + {"bom-ref": .purl}]')
    jq --sort-keys --argjson packages "$packages" '.components += $packages' "$file" >"$file.new"
    mv "$file.new" "$file"
  done
}

# The section of CHANGELOG.md for this version.
make_notes() {
  changes_of "$section" >"$output/release-notes.md"
  [ -s "$output/release-notes.md" ] || [ "$section" = Unreleased ] || fail "the section ## [$section] of CHANGELOG.md is empty"
}

make_checksums() {
  cd "$output" || return
  sha256sum -- * >"$work/SHA256SUMS"
  mv "$work/SHA256SUMS" .
}
