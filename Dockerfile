# syntax=docker/dockerfile:1
# Runs the demo or the tests as a non-root user.
#
#   docker build --target demo -t coevo_gym:demo .     docker run --rm coevo_gym:demo
#   docker build -t coevo_gym .                        docker run --rm coevo_gym
#
# The first image contains everything that `make demo` needs. The second contains everything that
# `make test` needs, and can run both (`docker run --rm coevo_gym make demo`). To keep the files of
# a run, mount a folder that user 1000 can write to: -v "$PWD/runs:/home/coevo/coevo_gym/runs".
#
# Docker forbids the namespaces that bubblewrap creates. The tests of that sandbox are then skipped
# with a message, and model-written code is confined by Landlock if the kernel supports it. To run
# these tests, too, pass --security-opt seccomp=unconfined --security-opt apparmor=unconfined
# --security-opt systempaths=unconfined

FROM debian:bookworm-slim AS packages
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 coevo \
    && install --directory --owner coevo --group coevo /home/coevo/coevo_gym
USER coevo
WORKDIR /home/coevo/coevo_gym
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 PYTHONUNBUFFERED=1
# The build of ALFWorld's engine needs a program named python.
ENV PATH=/home/coevo/coevo_gym/.venv/bin:$PATH
# Dependencies change less often than the code, so install them first, with an empty package.
COPY --chown=coevo:coevo pyproject.toml constraints.txt Makefile README.md LICENSE ./
RUN mkdir coevo_gym && touch coevo_gym/__init__.py && make .venv/train.stamp

FROM packages AS demo
COPY --chown=coevo:coevo . .
CMD ["make", "demo"]

FROM packages AS test
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
       bubblewrap chromium cmake g++ librsvg2-bin poppler-utils python3-dev \
    && rm -rf /var/lib/apt/lists/*
USER coevo
RUN .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[train,dev,serve,alfworld]'
COPY --chown=coevo:coevo . .
# Install BFCL's engine and AppWorld's built-in world, so that `docker run` works offline.
RUN make worlds
CMD ["make", "test"]
