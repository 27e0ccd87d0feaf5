#!/usr/bin/env bash
# What an installation takes, in environments of their own:
# bash scripts/measure-install.sh [EXTRAS ...]    "" is a node's, without extras
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- "" simulation
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m pip wheel --quiet --no-deps --wheel-dir "$work" .
wheel="$(echo "$work"/*.whl)"
printf '%-14s %8s %6s %8s\n' extra packages MB seconds
for extra in "$@"; do
  rm -rf "$work/venv"
  python3 -m venv "$work/venv"
  before="$(du -sm "$work/venv" | cut -f1)"
  began="$(date +%s.%N)"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel${extra:+[$extra]}" 2>/dev/null
  ended="$(date +%s.%N)"
  after="$(du -sm "$work/venv" | cut -f1)"
  packages="$("$work/venv/bin/pip" list --format freeze 2>/dev/null | wc -l)"
  printf '%-14s %8d %6d %8.1f\n' "${extra:-none}" "$packages" "$((after - before))" \
    "$(echo "$ended - $began" | bc)"
done
