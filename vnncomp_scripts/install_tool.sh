#!/usr/bin/env bash
# install_tool.sh v1: installs qll with all that verification needs into .venv beside this folder.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "usage: install_tool.sh v1" >&2; exit 1; }
cd "$(dirname "$0")/.."
python3 -m venv .venv
.venv/bin/pip install -c constraints.txt '.[verify]'
# Kernels are compiled once on a machine, and no instance should pay for that.
.venv/bin/python -c "from qll.verify.backend import BACKENDS; BACKENDS['bab']().prepare()"
.venv/bin/qll --version
