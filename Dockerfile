# docker build -t gristmill .                      every CPU stage, judges, PDF files
# docker build -t gristmill-gpu --target gpu .     training, ablations and neural judges too
# docker run --rm -u "$(id -u):$(id -g)" -v "$PWD:/data" gristmill run recipe.yaml
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
COPY --from=wheel /wheels /wheels
# kernels are compiled into this folder once, for whoever runs the container
ENV XDG_CACHE_HOME=/cache
RUN mkdir --mode=1777 /cache /data
WORKDIR /data
ENTRYPOINT ["gristmill"]
CMD ["--help"]

# 20 GB with CUDA's libraries, which torch brings along; the host needs the NVIDIA driver and container toolkit
FROM base AS gpu
# Triton compiles its launchers with a C compiler
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN wheel=$(echo /wheels/gristmill-*.whl) && pip install "$wheel[gpu,train,pdf,explore]" && gristmill doctor && chmod -R a+rwX /cache

FROM base AS cpu
RUN wheel=$(echo /wheels/gristmill-*.whl) && pip install "$wheel[pdf,explore]" && gristmill maintain warm && chmod -R a+rwX /cache
