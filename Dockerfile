# The library on TensorFlow 1.15, set up: docker build -t mx_rec . && docker run -it mx_rec
FROM python:3.7-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils ca-certificates curl gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# Rust, which the distribution has in a version that is too old.
ENV CARGO_HOME=/opt/cargo RUSTUP_HOME=/opt/rustup PATH=/opt/cargo/bin:$PATH
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal

WORKDIR /mx_rec
COPY . .
RUN PYTHON=/usr/local/bin/python3.7 scripts/setup
ENV PATH=/mx_rec/.venv/bin:$PATH
CMD ["bash"]
