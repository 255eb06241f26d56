# The images of Cistern, from binaries that are built already; e2e/cluster/build-images does both.
# The build context is a folder with cistern-driver and cistern-operator in it:
#
#   docker build --target driver   --tag cistern/driver:dev   --file Dockerfile target/release
#   docker build --target operator --tag cistern/operator:dev --file Dockerfile target/release
#
# Every setting can be given as a variable; those with a default have it here.

# Of Debian the images have what runs in them and nothing else: no shell, no interpreter, no package manager. Some tools
# are for people only, as in `kubectl exec ... -- xfs_repair -n /dev/loop3`. dpkg's status files and the licences show
# scanners and users what an image contains.
FROM debian:bookworm-slim AS debian
RUN apt-get update \
 && apt-get install --yes --no-install-recommends btrfs-progs e2fsprogs xfsprogs \
 && rm -rf /var/lib/apt/lists/*
RUN set -eu; \
    with_libraries() { ldd "$@" | grep -o '/[^ :]*' | sort -u; }; \
    mkdir -p /libraries /tools/var/lib/dpkg/status.d; \
    cp -L --parents $(with_libraries /lib/*-linux-gnu/libgcc_s.so.1 /lib/*-linux-gnu/libm.so.6) /libraries; \
    tools='mkfs.ext4 mkfs.xfs mkfs.btrfs blkid e2fsck resize2fs prlimit xfs_db xfs_repair dumpe2fs debugfs btrfs'; \
    cp -L --parents $(with_libraries $(which $tools)) /etc/mke2fs.conf /tools; \
    for tool in $tools; do chroot /tools "$tool" -V >/dev/null 2>&1 || [ $? != 127 ]; done; \
    for package in btrfs-progs e2fsprogs xfsprogs util-linux libc6; do \
      dpkg-query --status "$package" >"/tools/var/lib/dpkg/status.d/$package"; \
      licence="/usr/share/doc/$package/copyright"; \
      [ ! -e "$licence" ] || cp --parents "$licence" /tools; \
    done

FROM scratch AS operator
COPY --from=debian /libraries /
COPY cistern-operator /usr/local/bin/
ENV LOG_LEVEL=info,kube_runtime=warn LOG_FORMAT=text HTTP_ADDRESS=0.0.0.0:9808 \
    NAMESPACE=cistern-system POD_NAME=cistern-operator UNCLAIMED_AFTER_SECONDS=900 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/cistern-operator"]

FROM scratch AS driver
COPY --from=debian /libraries /
COPY --from=debian /tools /
COPY cistern-driver /usr/local/bin/
ENV LOG_LEVEL=info,kube_runtime=warn LOG_FORMAT=text HTTP_ADDRESS=0.0.0.0:9808 \
    STORAGE_ROOT=/var/lib/cistern KUBELET_ROOT=/var/lib/kubelet MAX_VOLUMES=256 KEEP_FREE_PERCENT=15 \
    HEALTH_INTERVAL=15s DRIFT_INTERVAL=5m \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/bin/cistern-driver"]
