#!/usr/bin/env bash
# The [glt] extra beside graphlearn-torch itself (GLT), in an environment of their own. glt_check.py says what is compared.
#   glt_check.sh setup    make the environment: several GB, as GLT's wheel needs torch 2.4 with its CUDA libraries
#   glt_check.sh          compare; prints a line for each comparison, exit code 1 where one fails
# Setup builds this package, or installs a wheel of it: GIGL_WHEEL=WHEEL glt_check.sh setup
# Environment: GLT_HOME (default ~/.cache/gigl_loader_bench/glt), BASE_PYTHON (default python3: 3.10 or 3.11).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
home=${GLT_HOME:-$HOME/.cache/gigl_loader_bench/glt}
python=$home/bin/python

if [ "${1:-}" = setup ]; then
  [ -x "$python" ] || "${BASE_PYTHON:-python3}" -m venv "$home"
  # setuptools: torch 2.4 imports it, and does not bring it along.
  nice "$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore \
    "gigl-loader[glt] @ file://${GIGL_WHEEL:-$root}" 'setuptools<80'
  exit 0
fi
[ -x "$python" ] || { echo "run '$0 setup' first" >&2; exit 2; }
exec env CUDA_VISIBLE_DEVICES= "$python" "$root/benchmarks/glt_check.py"
