#!/usr/bin/env bash
# Makes .venv hold exactly what requirements.lock says, with Python 3.12, and .venv/cuda-compiler what
# requirements-cuda.lock says: a folder that only deviceless compilation puts on its path. Idempotent: when
# the locks that were installed last equal the present ones, it returns at once.
# Reads: UV (path of uv to use), PYTHON (a Python 3.12 to build .venv from), EXTRAS (e.g. "cuda13 http").
# Writes: .venv, and .cache/uv where uv is not already on PATH. Nothing outside the repository is changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VERSION="3.12"
readonly VENV=".venv"
readonly STAMP="$VENV/installed.lock"
readonly CUDA_COMPILER="$VENV/cuda-compiler"
readonly UV_HOME=".cache/uv"

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# The locks plus the extras asked for: what the stamp is compared with.
wanted() {
  cat requirements.lock requirements-cuda.lock
  printf '# extras: %s\n' "${EXTRAS:-}"
}

is_wanted_python() {
  "$1" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$VERSION')" >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" "python$VERSION" python3 \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$VERSION".*/bin/python3; do
    if [[ -n "$candidate" ]] && is_wanted_python "$candidate"; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

# A distribution's Python refuses plain `pip install`, so uv gets a virtual environment of its own, or a
# plain folder where the distribution split `venv` off into a package that is not installed.
install_uv() {
  local host
  for host in "${PYTHON:-}" python3 "python$VERSION" python; do
    [[ -n "$host" ]] && "$host" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
    say "installing uv into $UV_HOME"
    rm -rf "$UV_HOME"
    if "$host" -m venv "$UV_HOME" >/dev/null 2>&1; then
      "$UV_HOME/bin/python" -m pip install -qq 'uv>=0.9' >&2 && return 0
    else
      rm -rf "$UV_HOME"
      "$host" -m pip install -qq --target "$UV_HOME" 'uv>=0.9' >&2 && return 0
    fi
  done
  die "uv is not on PATH and no Python here could install it; install uv by hand, or set UV=/path/to/uv"
}

find_uv() {
  local candidate
  for candidate in "${UV:-}" uv "$UV_HOME/bin/uv"; do
    if [[ -n "$candidate" ]] && "$candidate" --version >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

if [[ "${1:-}" == "--print-uv" ]]; then
  find_uv || { install_uv && find_uv; } || die "uv was installed but does not run"
  exit 0
fi

if is_wanted_python "$VENV/bin/python" && cmp -s "$STAMP" <(wanted); then
  exit 0
fi

uv="$(find_uv)" || {
  install_uv
  uv="$(find_uv)" || die "uv was installed but does not run: $UV_HOME/bin/uv"
}

if ! is_wanted_python "$VENV/bin/python"; then
  say "creating $VENV with Python $VERSION"
  python="$(find_python)" || python="$VERSION" # uv knows further places, and may download one
  "$uv" venv --quiet --clear --python "$python" "$VENV" ||
    die "no Python $VERSION found, and uv could not fetch one; install it (for example 'pyenv install $VERSION'," \
      "or the distribution's package python$VERSION) or set PYTHON=/path/to/python$VERSION"
fi

say "installing requirements.lock"
rm -f "$STAMP"
"$uv" pip sync --quiet --python "$VENV/bin/python" requirements.lock
rm -rf "$CUDA_COMPILER"
"$uv" pip install --quiet --python "$VENV/bin/python" --target "$CUDA_COMPILER" --no-deps \
  -r requirements-cuda.lock
if [[ -n "${EXTRAS:-}" ]]; then
  say "installing extras: $EXTRAS"
  flags=()
  for extra in $EXTRAS; do flags+=(--extra "$extra"); done
  "$uv" pip install --quiet --python "$VENV/bin/python" -r pyproject.toml "${flags[@]}" -c requirements.lock
fi
wanted >"$STAMP"
