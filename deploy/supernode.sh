#!/usr/bin/env bash
# Start a SuperNode.
#
#   deploy/supernode.sh ADDRESS CA_CERTIFICATE PRIVATE_KEY NODE_CONFIG [--port 9095] ...
#
# ADDRESS is the SuperLink's HOST:PORT, CA_CERTIFICATE the ca.crt that signed its
# certificate, PRIVATE_KEY this node's (deploy/node-keys.sh; the public one has to be
# registered), NODE_CONFIG what only this node has: 'data="/srv/data.csv"', and more.
# Each SuperNode on a machine needs a --port of its own (9094), which is for itself only.
set -euo pipefail
umask 077

if [ "$#" -lt 4 ]; then
  echo "usage: $0 ADDRESS CA_CERTIFICATE PRIVATE_KEY NODE_CONFIG [arguments of flower-supernode]" >&2
  exit 2
fi
address=$1 certificate=$2 key=$3 config=$4
shift 4

exec flower-supernode \
  --superlink "$address" \
  --root-certificates "$certificate" \
  --auth-supernode-private-key "$key" \
  --node-config "$config" \
  "$@"
