# The sidecar's image. The base must be glibc: NVIDIA's container runtime puts the driver's own
# libraries into the container, and they do not load on musl. No CUDA image is needed.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# For networks where packages come through a proxy or a mirror; none of it reaches the final stage.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_CERT
WORKDIR /src
RUN python3 -m venv /opt/venv
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY sidecar ./sidecar
RUN /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    # A container is reached from outside it; who may reach it is the publisher's choice.
    SIDECAR_HOST=0.0.0.0 \
    # For `--runtime nvidia`: every GPU, and only the library that reads it.
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 9130
# Says that the process answers. It depends neither on vLLM nor on a GPU: a monitor that is
# restarted because of what it watches goes blind just then.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s CMD ["vllm-sidecar", "healthcheck"]
ENTRYPOINT ["vllm-sidecar"]
CMD ["run"]
