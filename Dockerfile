# syntax=docker/dockerfile:1
#
# An image with one static binary and nothing else: `docker build -t REGISTRY/weir:0.1.0 .`

# Debian 12 with rustup. Debian's own packages bring the compiler for the BPF target.
FROM rust:1.95-bookworm AS build

# What `cargo xtask setup` would install for building; here it is a layer that lasts.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --no-remove \
        g++ libpolly-22-dev libstd-rust-web-dev-bpf libzstd-dev llvm-22-dev rustc-web zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
RUN LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker --locked --version 0.13.0

WORKDIR /src
COPY . .
RUN cargo xtask dist

FROM scratch

LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A Kubernetes service proxy whose packet path runs in the kernel as eBPF" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="(MIT OR Apache-2.0) AND (MIT OR GPL-2.0)"

COPY --from=build /src/target/dist/weir /weir
COPY LICENSE-APACHE LICENSE-MIT /licenses/

# `kubectl exec … -- weir status` looks for the name here.
ENV PATH=/
# The certificate of the API server's CA comes with the service account or the kubeconfig, so no
# certificates of public CAs are here. A kubeconfig that names none needs SSL_CERT_FILE and a mount.

ENTRYPOINT ["/weir"]
CMD ["run"]
