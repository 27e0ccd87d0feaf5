#!/usr/bin/env bash
# Make the key pair by which the SuperLink knows a node.
#
#   deploy/node-keys.sh FOLDER NAME [NAME...]
#
# FOLDER gets NAME (private, stays on the node) and NAME.pub (to be registered). Best run
# on the node itself: then the private key never travels. Nothing is overwritten.
set -euo pipefail
umask 077

if [ "$#" -lt 2 ]; then
  echo "usage: $0 FOLDER NAME [NAME...]" >&2
  exit 2
fi
folder=$1
shift

for name in "$@"; do
  for file in "$folder/$name" "$folder/$name.pub"; do
    if [ -e "$file" ]; then
      echo "$file exists and is not overwritten; move it away first" >&2
      exit 1
    fi
  done
done
mkdir -p "$folder"
for name in "$@"; do
  # Flower takes elliptic curves only
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$folder/$name"
  echo "$folder/$name.pub"
done
