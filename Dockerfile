# The images of Cistern: the only description of what they contain.
#
#   docker build --target driver   --tag registry.example/cistern/driver:dev   .
#   docker build --target operator --tag registry.example/cistern/operator:dev .
#
# For other architectures add --platform linux/amd64,linux/arm64: the first stages run on the machine that builds, and
# compile for the architecture of the image. Without Docker, release/oci-image makes the same images of the final stages, from
# folders with what the first ones contain.
#
# The final stages consist of ARG, LABEL, COPY --from, ENV, USER and ENTRYPOINT, because release/oci-image understands no
# more. Every setting can be given as a variable; those with a default have it here.

FROM --platform=$BUILDPLATFORM docker.io/library/rust:1.95-bookworm AS debian
RUN case "$(dpkg --print-architecture)" in \
      amd64) other=gcc-aarch64-linux-gnu ;; \
      arm64) other=gcc-x86-64-linux-gnu ;; \
    esac \
 && apt-get update \
 && apt-get install --yes --no-install-recommends "$other" \
 && rm -rf /var/lib/apt/lists/*

# Of Debian the images have what runs in them and nothing else: no shell, no interpreter, no package manager.
FROM debian AS root
ARG TARGETARCH
COPY release/unpack-packages release/image-root /source/release/
RUN /source/release/image-root "$TARGETARCH" /

FROM debian AS builder
ARG TARGETARCH
WORKDIR /source
COPY . .
RUN release/compile "$TARGETARCH" /binaries && mv /binaries/* /

FROM scratch AS operator
ARG VERSION=dev
ARG REVISION=unknown
ARG SOURCE=https://cistern.storage
LABEL org.opencontainers.image.title="Cistern operator" \
    org.opencontainers.image.description="Cistern's controllers for pools, capacity and events" \
    org.opencontainers.image.url=https://cistern.storage \
    org.opencontainers.image.source=$SOURCE \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=$VERSION \
    org.opencontainers.image.revision=$REVISION
COPY --from=root /libraries /
COPY --from=builder /cistern-operator /usr/local/bin/
ENV LOG_LEVEL=info,kube_runtime=warn LOG_FORMAT=text HTTP_ADDRESS=[::]:9808 \
    NAMESPACE=cistern-system POD_NAME=cistern-operator UNCLAIMED_AFTER_SECONDS=900 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/cistern-operator"]

FROM scratch AS driver
ARG VERSION=dev
ARG REVISION=unknown
ARG SOURCE=https://cistern.storage
LABEL org.opencontainers.image.title="Cistern driver" \
    org.opencontainers.image.description="Cistern's CSI controller and node plugin, with the tools of ext4, XFS, btrfs, LUKS and LVM" \
    org.opencontainers.image.url=https://cistern.storage \
    org.opencontainers.image.source=$SOURCE \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=$VERSION \
    org.opencontainers.image.revision=$REVISION
COPY --from=root /libraries /
COPY --from=root /tools /
COPY --from=builder /cistern-driver /usr/local/bin/
ENV LOG_LEVEL=info,kube_runtime=warn LOG_FORMAT=text HTTP_ADDRESS=[::]:9808 \
    POD_NAME=cistern-controller \
    STORAGE_ROOT=/var/lib/cistern KUBELET_ROOT=/var/lib/kubelet MAX_VOLUMES=256 KEEP_FREE_PERCENT=15 \
    HEALTH_INTERVAL=15s DRIFT_INTERVAL=5m TRANSFER_ADDRESS=[::]:9812 TRANSFER_BYTES_PER_SECOND=0 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/bin/cistern-driver"]
