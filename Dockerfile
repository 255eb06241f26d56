# The images of Cistern, from binaries that are built already; e2e/cluster/build-images does both.
# The build context is a folder with cistern-driver and cistern-operator in it:
#
#   docker build --target driver   --tag cistern/driver:dev   --file Dockerfile target/release
#   docker build --target operator --tag cistern/operator:dev --file Dockerfile target/release
#
# Every setting can be given as a variable; those with a default have it here.

FROM debian:bookworm-slim AS operator
COPY cistern-operator /usr/local/bin/
ENV LOG_LEVEL=info,kube_runtime=warn LOG_FORMAT=text HTTP_ADDRESS=0.0.0.0:9808 \
    NAMESPACE=cistern-system POD_NAME=cistern-operator
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/cistern-operator"]

FROM debian:bookworm-slim AS driver
# The tools that own the formats of ext4, xfs and btrfs.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends btrfs-progs e2fsprogs xfsprogs \
 && rm -rf /var/lib/apt/lists/*
COPY cistern-driver /usr/local/bin/
ENV LOG_LEVEL=info,kube_runtime=warn LOG_FORMAT=text HTTP_ADDRESS=0.0.0.0:9808 \
    STORAGE_ROOT=/var/lib/cistern KUBELET_ROOT=/var/lib/kubelet MAX_VOLUMES=256 KEEP_FREE_PERCENT=15 \
    HEALTH_INTERVAL=15s DRIFT_INTERVAL=5m
ENTRYPOINT ["/usr/local/bin/cistern-driver"]
