# The image of ADLRO: `docker build -t adlro .` in a checkout; .github/workflows/image.yml builds it for a release.
# Policies are compiled in the image with the very Python and Numba that run there, so that a daemon is ready at once.
FROM python:3.12.11-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY scripts/machine_code.sh scripts/
COPY src src
RUN python -m venv /opt/adlro \
    && /opt/adlro/bin/pip install --no-cache-dir -c constraints.txt ".[kubernetes,postgres]" \
    && scripts/machine_code.sh /opt/adlro/bin/adlro /opt/adlro/lib/python3.12/site-packages/adlro/machine_code

FROM python:3.12.11-slim-bookworm
LABEL org.opencontainers.image.title="adlro" \
      org.opencontainers.image.description="A scheduler for clusters whose GPUs differ" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/adlro /opt/adlro
# All that is written is under these; the rest may be read-only.
ENV PATH=/opt/adlro/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/adlro \
    STATE_DIRECTORY=/var/lib/adlro \
    XDG_CACHE_HOME=/var/lib/adlro/cache \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    ADLRO_URL=http://127.0.0.1:8321
WORKDIR /var/lib/adlro
RUN chown 10001:10001 /var/lib/adlro
USER 10001:10001
VOLUME /var/lib/adlro
EXPOSE 8321 8322
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['ADLRO_URL'] + '/healthz', timeout=4)"]
ENTRYPOINT ["adlro"]
CMD ["serve", "--config", "/etc/adlro/adlro.toml"]
