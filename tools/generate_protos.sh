#!/usr/bin/env bash
# Generates every committed *_pb2.py, *_pb2.pyi and *_pb2_grpc.py from the .proto files of disagg and serve.
# Module paths follow the file paths from the repository root (disagg/proto/x.proto -> disagg.proto.x_pb2).
# usage: tools/generate_protos.sh [OUTPUT_DIR]     (default: in place; a test compares a fresh run elsewhere)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output="${1:-.}"
python="${VENV_PYTHON:-.venv/bin/python}"

sources=()
while IFS= read -r path; do sources+=("$path"); done < <(find disagg serve -name '*.proto' | LC_ALL=C sort)
if ((${#sources[@]} == 0)); then
  echo "generate_protos: no .proto file under disagg/ or serve/" >&2
  exit 1
fi
mkdir -p "$output"
"$python" -m grpc_tools.protoc --proto_path=. \
  --python_out="$output" --pyi_out="$output" --grpc_python_out="$output" "${sources[@]}"
