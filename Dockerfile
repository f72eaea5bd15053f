# Three images, each with what it imports and no more:
#   docker build --target extender -t gpushare-extender .
#   docker build --target device-plugin -t gpushare-device-plugin .
#   docker build -t gpushare .            both, for one name in every manifest
# tests/integration/test_image_contents.py holds that against the code.
# All stages use one base, so that the environment built in one runs in another. A tag can be moved, a
# digest cannot: for an image that others run, give the base with its digest.
#   docker buildx imagetools inspect python:3.11.14-slim-bookworm --format '{{.Manifest.Digest}}'
#   docker build --build-arg BASE=python:3.11.14-slim-bookworm@sha256:... -t gpushare .
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS source
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
RUN python -m venv --without-pip /opt/gpushare
WORKDIR /src
COPY requirements*.lock ./
RUN pip install --require-hashes --only-binary :all: --requirement requirements-build.lock
# Of the official client's 126 MiB: its classes for each API and its half for asyncio, which nothing
# imports.
RUN printf '%s\n' '#!/bin/sh -e' 'cd /opt/gpushare/lib/python3*/site-packages/kubernetes' \
        'find aio client/api client/models -type f ! -name "__init__.*" -delete' \
        >/usr/local/bin/prune-client \
 && chmod 755 /usr/local/bin/prune-client

# What each image has of ours: these rooms, and those that it alone runs.
FROM scratch AS common
COPY setup.cfg pyproject.toml README.md LICENSE NOTICE /
COPY gpushare/*.py gpushare/py.typed /gpushare/
COPY gpushare/cli /gpushare/cli
COPY gpushare/core /gpushare/core
COPY gpushare/daemon /gpushare/daemon
COPY gpushare/kube /gpushare/kube
COPY gpushare/trace /gpushare/trace
COPY gpushare/wire /gpushare/wire

FROM common AS code-extender
COPY gpushare/doctor /gpushare/doctor
COPY gpushare/explain /gpushare/explain
COPY gpushare/extender /gpushare/extender
COPY gpushare/ledger /gpushare/ledger
COPY gpushare/policy /gpushare/policy

FROM common AS code-device-plugin
COPY gpushare/device_plugin /gpushare/device_plugin

FROM code-extender AS code-gpushare
COPY gpushare/device_plugin /gpushare/device_plugin

# The dependencies first: this layer stays as long as the lock files do. Their hashes are checked, and
# nothing is compiled.
FROM source AS build-extender
RUN pip --python /opt/gpushare/bin/python install \
        --require-hashes --only-binary :all: --requirement requirements-extender.lock \
 && prune-client
COPY --from=code-extender / ./
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/gpushare/bin/python install --no-deps --no-index /wheels/*.whl

FROM source AS build-device-plugin
RUN pip --python /opt/gpushare/bin/python install \
        --require-hashes --only-binary :all: --requirement requirements-device-plugin.lock \
 && prune-client
COPY --from=code-device-plugin / ./
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/gpushare/bin/python install --no-deps --no-index /wheels/*.whl

FROM source AS build-gpushare
RUN pip --python /opt/gpushare/bin/python install \
        --require-hashes --only-binary :all: --requirement requirements.lock \
 && prune-client
COPY --from=code-gpushare / ./
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/gpushare/bin/python install --no-deps --no-index /wheels/*.whl

FROM ${BASE} AS run
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpushare" \
      org.opencontainers.image.description="Lets Kubernetes pods share GPUs by device memory" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# More arenas of glibc, one for each thread, only keep memory that was freed: see
# docs/research/performance.md.
ENV PATH=/opt/gpushare/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=1 \
    PYTHONSAFEPATH=1
# By number, so that Kubernetes can tell that it is not root (runAsNonRoot). It writes nowhere but
# in /tmp, where the root file system is read-only. The device plug-in's manifest says root, as the
# kubelet's sockets are root's.
USER 65532:65532
# Not in /tmp: what others can write there is never imported, nor read, as if it were ours.
WORKDIR /
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpushare"]

FROM run AS extender
COPY --from=build-extender /opt/gpushare /opt/gpushare
# Verbs, and probes with metrics. Both listen on loopback unless told otherwise.
EXPOSE 32766 32767
CMD ["serve"]

FROM run AS device-plugin
COPY --from=build-device-plugin /opt/gpushare /opt/gpushare
# Probes and metrics.
EXPOSE 32765
CMD ["device-plugin"]

FROM run AS gpushare
COPY --from=build-gpushare /opt/gpushare /opt/gpushare
EXPOSE 32765 32766 32767
CMD ["serve"]
