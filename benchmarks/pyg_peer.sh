#!/usr/bin/env bash
# PyG's own loaders on the common workload, in an environment of their own. pyg_peer.py calls both forms.
#   pyg_peer.sh setup    make the environment; nothing to do where it exists
#   pyg_peer.sh CASE     measure a case (JSON, see peer_case.py) and print a line of JSON
# PyG samples by pyg-lib or, several times slower, by torch-sparse. PyPI has no pyg-lib, neither wheels nor sources. So
#   PYG_LIB=WHEEL pyg_peer.sh setup
# installs a wheel of pyg-lib that you have; it must have been built for the torch of the environment. Without one, torch-sparse
# is compiled from its sources on PyPI: half an hour on two cores, once.
# Environment: PYG_HOME (default ~/.cache/gigl_loader_bench/pyg), TORCH (default 2.13.0), PYG (default 2.8.1), MAX_JOBS (default 2).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
home=${PYG_HOME:-$HOME/.cache/gigl_loader_bench/pyg}
python=$home/bin/python

has() { "$python" -c "import $1" 2>/dev/null; }

# Only the measuring process sees the repository: of gigl_loader it imports a module that needs no other package.
if [ "${1:-}" != setup ]; then
  [ -x "$python" ] || { echo "run '$0 setup' first" >&2; exit 2; }
  PYTHONPATH=$root exec "$python" "$root/benchmarks/pyg_side.py" "$1"
fi

install() { nice "$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore "$@"; }

[ -x "$python" ] || python3 -m venv "$home"
has torch_geometric || install "torch==${TORCH:-2.13.0}" "torch-geometric==${PYG:-2.8.1}" numpy setuptools wheel
if [ -n "${PYG_LIB:-}" ]; then
  install --no-deps --force-reinstall "$PYG_LIB"
elif ! has pyg_lib && ! has torch_sparse; then
  echo "compiling torch-scatter and torch-sparse in $home: takes half an hour" >&2
  export MAX_JOBS=${MAX_JOBS:-2} FORCE_ONLY_CPU=1 FORCE_CUDA=0
  # Without isolation: they must be built against the torch that is there.
  install --no-deps --no-build-isolation --no-binary torch-scatter,torch-sparse torch-scatter==2.1.2 torch-sparse==0.6.18
  install scipy
fi
"$python" - <<'CHECK'
import warnings
warnings.simplefilter("ignore")
import torch, torch_geometric
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
backend = "pyg-lib" if WITH_PYG_LIB else "torch-sparse" if WITH_TORCH_SPARSE else None
if backend is None:
    raise SystemExit("PyG finds neither pyg-lib nor torch-sparse")
print("PyG", torch_geometric.__version__, "ready on torch", torch.__version__, "with", backend)
CHECK
