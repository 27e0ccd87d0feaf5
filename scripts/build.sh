#!/usr/bin/env bash
# The distributions in dist/, checked: no warning, a README that renders, with absolute
# links where FEDTRELLIS_REPOSITORY has the repository's address. The tools have
# an environment of their own: twine and Flower want different versions of packaging.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x build/tools/bin/twine ] || {
  python3 -m venv build/tools
  build/tools/bin/pip install --quiet --disable-pip-version-check build twine
}
rm -rf dist
build/tools/bin/python -m build --outdir dist . >build/build.log 2>&1 || { cat build/build.log >&2; exit 1; }
if grep "[Dd]eprecat\|WARNING" build/build.log; then
  echo "python -m build is not clean: build/build.log" >&2
  exit 1
fi
build/tools/bin/twine check --strict dist/*.whl dist/*.tar.gz
