#!/usr/bin/env bash
# Correctness of all kernels on the GPU that is here, then their speed beside alternatives. Exit status 1
# where there is no GPU: nothing was checked then. Arguments go to benchmarks/kernels.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTHON=".venv/bin/python"

backend="$("$PYTHON" -c 'import jax; print(jax.default_backend())')"
if [[ "$backend" != gpu ]]; then
  printf 'gpu-check: no GPU here: jax runs on "%s". Nothing was checked.\n' "$backend" >&2
  printf 'gpu-check: on a machine with one, make env EXTRAS=cuda13 (or cuda12) installs what jax needs.\n' >&2
  exit 1
fi
"$PYTHON" -m pytest -q -m gpu tests/pallas_kernels
"$PYTHON" -m benchmarks.kernels "$@"
