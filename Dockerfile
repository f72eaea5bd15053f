# The extender: docker build -t gpushare .
# Both stages use one base, so that the environment built in the first runs in the second. A tag can
# be moved, a digest cannot: for an image that others run, give the base with its digest.
#   docker buildx imagetools inspect python:3.11.14-slim-bookworm --format '{{.Manifest.Digest}}'
#   docker build --build-arg BASE=python:3.11.14-slim-bookworm@sha256:... -t gpushare .
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
RUN python -m venv --without-pip /opt/gpushare
WORKDIR /src
# The dependencies first: this layer stays as long as the lock file does. Their hashes are checked,
# and nothing is compiled.
COPY requirements.lock requirements-build.lock ./
RUN pip install --require-hashes --only-binary :all: --requirement requirements-build.lock
RUN pip --python /opt/gpushare/bin/python install \
        --require-hashes --only-binary :all: --requirement requirements.lock
COPY . .
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/gpushare/bin/python install --no-deps --no-index /wheels/*.whl

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpushare" \
      org.opencontainers.image.description="Kubernetes scheduler extender that lets pods share GPUs by device memory" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# More arenas of glibc, one for each thread, only keep memory that was freed: see
# docs/research/performance.md.
ENV PATH=/opt/gpushare/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=1 \
    PYTHONSAFEPATH=1
COPY --from=build /opt/gpushare /opt/gpushare
# By number, so that Kubernetes can tell that it is not root (runAsNonRoot). It writes nowhere but
# in /tmp, where the root file system is read-only.
USER 65532:65532
# Not in /tmp: what others can write there is never imported, nor read, as if it were ours.
WORKDIR /
# Verbs, and probes with metrics. Both listen on loopback unless told otherwise.
EXPOSE 32766 32767
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpushare"]
CMD ["serve"]
