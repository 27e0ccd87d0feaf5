#!/usr/bin/env bash
# Environments for the engines that `python -m benchmarks --only engines` compares with,
# each in a folder of its own (FedJAX needs a JAX that has jax.tree_map):
# bash scripts/make-engines.sh [fedjax] [pfl]
set -euo pipefail
homes="${FEDTRELLIS_ENGINES:-$HOME/.cache/fedtrellis-engines}"
for name in "${@:-fedjax pfl}"; do
  for engine in $name; do
    case "$engine" in
      fedjax) packages=(fedjax==0.0.17 jax==0.5.3) ;;
      pfl) packages=(pfl==0.6.0 torch==2.13.0) ;;
      *) echo "there is no engine $engine; there are fedjax and pfl" >&2; exit 2 ;;
    esac
    python3 -m venv "$homes/$engine"
    "$homes/$engine/bin/pip" install --quiet "${packages[@]}"
  done
done
