# Broker and name server in one image:
#   docker build -t skylarkmq .
#   docker run -p 9876:9876 -p 10909:10909 -p 10911:10911 -v skylarkmq:/data \
#       -e SKYLARKMQ_BROKER_IP1=<the address that clients reach this machine at> skylarkmq
# It runs with a read-only root file system (--read-only --tmpfs /tmp): it writes to /data alone.
# Any key can be set as an environment variable: flushDiskType is SKYLARKMQ_FLUSH_DISK_TYPE.
# Other extras of the package: --build-arg EXTRAS=tls
# Podman keeps the health check with --format docker.

# With a C compiler, for the kernel.
FROM python:3.11 AS build
ARG EXTRAS=compression,console,grpc,otel,tls
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/skylarkmq \
    && python -m pip --python /opt/skylarkmq/bin/python install --no-cache-dir \
        --disable-pip-version-check ".[${EXTRAS}]"

FROM python:3.11-slim
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="SkylarkMQ" \
      org.opencontainers.image.description="A message broker that speaks Apache RocketMQ's protocol and keeps its store files" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The base image has no byte code of Python's own modules, and ours writes none: each start would
# compile them anew.
RUN python -m compileall -q -j 0 "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# The same numbers as in Apache's image, so that a volume can move between the two.
RUN groupadd --gid 3000 rocketmq \
    && useradd --uid 3000 --gid 3000 --no-create-home --home-dir /data --shell /usr/sbin/nologin rocketmq \
    && install --directory --owner=rocketmq --group=rocketmq --mode=0750 /data
COPY --from=build /opt/skylarkmq /opt/skylarkmq

# The name must not be the container's: it is part of every queue's identity.
ENV PATH=/opt/skylarkmq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SKYLARKMQ_BROKER_NAME=broker-a \
    SKYLARKMQ_BIND_ADDRESS=0.0.0.0 \
    SKYLARKMQ_METRICS_PROM_EXPORTER_HOST=0.0.0.0 \
    SKYLARKMQ_STORE_PATH_ROOT_DIR=/data/store

USER 3000:3000
WORKDIR /data
VOLUME /data
# Name server; fast port and main port of the broker, its port for slaves and replicas; metrics and
# health; gRPC, once grpcListenPort is 8081; the console, if that is what runs.
EXPOSE 9876 10909 10911 10912 5557 8081 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["skylarkmq", "health", "--or", "127.0.0.1:9876", "--or", "127.0.0.1:8080"]
ENTRYPOINT ["skylarkmq"]
CMD ["serve"]
