#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB: nothing is precomputed; both files must be there.
set -euo pipefail
[ "${1:-}" = v1 ] && [ $# -eq 4 ] || { echo "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB" >&2; exit 1; }
for file in "$3" "$4"; do
  [ -r "$file" ] || { echo "cannot read $file" >&2; exit 1; }
done
