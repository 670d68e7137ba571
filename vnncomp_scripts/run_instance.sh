#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT: the answer, and after sat the assignment,
# go to RESULTS. The competition says 'timeout' where the standard says 'timed-out', and 'error'.
set -euo pipefail
[ "${1:-}" = v1 ] && [ $# -eq 6 ] || { echo "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT" >&2; exit 1; }
onnx=$3 vnnlib=$4 results=$5 timeout=$6
qll=${QLL:-$(cd "$(dirname "$0")/.." && pwd)/.venv/bin/qll}
if "$qll" verify "$vnnlib" --network "$onnx" --timeout "$timeout" >"$results.part"; then
  sed '1s/^timed-out$/timeout/' "$results.part" >"$results"
else
  echo error >"$results"
fi
rm -f "$results.part"
