#!/usr/bin/env bash
# Start a SuperLink with TLS that lets in registered nodes only.
#
#   deploy/superlink.sh CERTIFICATES STATE [--host 0.0.0.0] [more of flower-superlink's]
#
# CERTIFICATES has ca.crt, server.crt and server.key (deploy/certificates.sh). STATE gets
# superlink.db (nodes, runs, messages: with it, a restart forgets nothing), superlink.log
# and apps. Without --host it listens on 127.0.0.1, on port 8000.
set -euo pipefail
umask 077

if [ "$#" -lt 2 ]; then
  echo "usage: $0 CERTIFICATES STATE [arguments of flower-superlink]" >&2
  exit 2
fi
certificates=$(realpath "$1")
mkdir -p "$2"
state=$(realpath "$2")
shift 2

export FLWR_HOME=${FLWR_HOME:-$state/flower}
cd "$state" # runs work here: they must not depend on where this was called
# Runs use the environment that this SuperLink runs in. Flower would otherwise make one
# for each run, from the network, without the extras (encryption, PyTorch).
exec flower-superlink \
  --ssl-ca-certfile "$certificates/ca.crt" \
  --ssl-certfile "$certificates/server.crt" \
  --ssl-keyfile "$certificates/server.key" \
  --enable-supernode-auth \
  --database "$state/superlink.db" \
  --log-file "$state/superlink.log" \
  --disable-runtime-dependency-installation \
  "$@"
