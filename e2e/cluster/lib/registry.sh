# shellcheck shell=bash disable=SC2034 # variables for the scripts
# The default way: the machine's docker engine, the node image that kind names itself, and images that the nodes pull. It
# defines what lib/way.sh asks for. Sourced, never run.
#
# UNTESTED: written on machines without a registry. What does not need one is tested in e2e/tests/harness.
#
# The node image has one home, go/kind/go.mod: every release of kind contains the name of its image with its digest, which is
# also what its release notes list (https://github.com/kubernetes-sigs/kind/releases). Its Kubernetes may be one minor version
# newer than that of go/kubernetes, which the offline way runs. The other images are those of Cistern's manifests, and of the
# sources of snapshot-controller and of the storage suite.

kind_arguments=()
images_archive=

use_engine() {
  docker info >/dev/null 2>&1 || fail "no docker engine answers; start it, or use CISTERN_HARNESS=offline (root)"
}
start_engine() { :; }
may_have_clusters() { :; }
leave_engine() { :; }

packages_of_nodes() { :; }
programs_of_nodes() { :; }
programs_of_suite() { :; }
prepare_nodes() {
  [ -z "${CISTERN_KUBERNETES:-}" ] || fail "the nodes run the Kubernetes of kind's node image: unset CISTERN_KUBERNETES, or use CISTERN_HARNESS=offline (root)"
}
prepare_suite() { :; }
prepare_postgresql() { :; }
cluster_patch() { :; }
complete_cluster() { :; }
