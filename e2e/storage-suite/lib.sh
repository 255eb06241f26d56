# shellcheck shell=bash
# Shared by the scripts of this folder: the tools, a folder for reports, and a run of the suite. Sourced, never run.

: "${KUBECONFIG:?names the cluster to test}"
tool() { "$(dirname "${BASH_SOURCE[0]}")/../cluster/tool" "$1"; }
kubectl=$(tool kubectl)
ginkgo=$(tool ginkgo)
suite=$(tool e2e.test)
results=$(mktemp -d)

# run_suite NAME FOCUS SKIP GINKGO_OPTION...: runs the tests that match FOCUS and not SKIP, with the driver definition
# $results/NAME.yaml. The report is $results/NAME.json.
run_suite() {
  TMPDIR=$results "$ginkgo" "${@:4}" --no-color --succinct --silence-skips --seed 1 --focus "$2" --skip "$3" \
    --json-report "$1.json" --output-dir "$results" "$suite" -- \
    -storage.testdriver="$results/$1.yaml" --kubeconfig="$KUBECONFIG" --provider=local --num-nodes=3 \
    --kubectl-path="$kubectl" --report-dir="$results"
}

# make_pool FILE: makes the pool of the tests from pool.yaml or, with -, from what standard input makes of it.
make_pool() {
  "$kubectl" apply --filename "$1"
  "$kubectl" wait --for=condition=Ready --timeout=120s storagepool/storage-suite && return
  "$kubectl" describe storagepool/storage-suite
  return 1
}

# absolute FILE: prints a driver definition of this folder. The suite looks for files relative to its own source.
absolute() { sed "s|FromFile: |&$PWD/|" "$1"; }
