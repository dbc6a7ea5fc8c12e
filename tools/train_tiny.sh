#!/usr/bin/env bash
# Trains the tiny model that the package ships, from nothing or from the last checkpoint, and evaluates it.
# Takes about half an hour on two idle cores, and several on busy ones. Writes build/train-tiny (checkpoints, log, loss.png) and
# build/tiny_model; to ship the result, copy build/tiny_model over dsv4/tiny_model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly WORK="build/train-tiny" OUT="build/tiny_model"

# Training allocates and frees the same large arrays in every step: with glibc's defaults each goes back to
# the kernel and a third of the time goes into page faults.
export GLIBC_TUNABLES="glibc.malloc.mmap_threshold=4000000000:glibc.malloc.trim_threshold=16000000000:glibc.malloc.top_pad=268435456:glibc.malloc.hugetlb=1"
# Without it XLA keeps the order of every sum, and does not vectorise it.
export XLA_FLAGS="${XLA_FLAGS:-} --xla_cpu_enable_fast_math=true"

if [[ ! -f "$OUT/config.json" ]]; then
  .venv/bin/python -m dsv4.training train --work "$WORK" --out "$OUT"
fi
.venv/bin/python -m dsv4.training evaluate --model "$OUT" "$@"
