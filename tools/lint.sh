#!/usr/bin/env bash
# Runs every static check, reports all findings, and fails when one of them failed.
# pyright needs Node.js: without it the check is skipped with a notice on a person's machine and is an
# error where CI is set. buildifier comes from npm and is skipped, with the reason, where npm gives none.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BIN=".venv/bin"
readonly BUILDIFIER_VERSION="8.2.1"
readonly BUILDIFIER_HOME=".cache/buildifier-$BUILDIFIER_VERSION"
readonly BUILDIFIER="$BUILDIFIER_HOME/node_modules/.bin/buildifier"
failed=()
skipped=()

check() {
  local name="$1"
  shift
  printf -- '-- %s\n' "$name"
  "$@" || failed+=("$name")
}

skip() {
  printf -- '-- %s: skipped: %s\n' "$1" "$2"
  skipped+=("$1")
}

install_buildifier() {
  [[ -x "$BUILDIFIER" ]] && return 0
  npm install --prefix "$BUILDIFIER_HOME" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error \
    "@bazel/buildifier@$BUILDIFIER_VERSION" >/dev/null
}

check "ruff check" "$BIN/ruff" check --quiet .
check "ruff format" "$BIN/ruff" format --quiet --diff .
check "import-linter" "$BIN/lint-imports" --no-cache --no-logo

if command -v node >/dev/null 2>&1; then
  check "pyright" env PYRIGHT_PYTHON_GLOBAL_NODE=1 PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$BIN/pyright"
elif [[ -n "${CI:-}" ]]; then
  check "pyright (needs Node.js, and there is no node on PATH)" false
else
  skip "pyright" "there is no node on PATH; install Node.js 18 or newer to run it"
fi

if ! command -v npm >/dev/null 2>&1; then
  skip "buildifier" "there is no npm on PATH to install @bazel/buildifier with"
elif ! install_buildifier; then
  skip "buildifier" "npm could not install @bazel/buildifier@$BUILDIFIER_VERSION"
else
  check "buildifier" "$BUILDIFIER" --mode=check --lint=warn BUILD MODULE.bazel
fi

((${#skipped[@]} == 0)) || printf 'lint: skipped: %s\n' "${skipped[*]}"
if ((${#failed[@]} > 0)); then
  printf 'lint: FAILED: %s\n' "${failed[*]}"
  exit 1
fi
echo "lint: ok"
