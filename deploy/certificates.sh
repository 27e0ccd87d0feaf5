#!/usr/bin/env bash
# Make a certificate authority and, signed by it, the SuperLink's certificate.
#
#   deploy/certificates.sh FOLDER NAME [NAME...]
#
# NAME is what nodes and users call the SuperLink by: host names, IP addresses; 127.0.0.1,
# by which its own processes call it (also with --host 0.0.0.0), is added. FOLDER
# gets ca.crt (for everybody), server.crt and server.key (for the SuperLink) and ca.key
# (to sign the next server certificate; keep it away from all of them). Nothing is
# overwritten. Where ca.key and ca.crt are there already, they sign a new server.crt.
#
# DAYS is how long server.crt holds (365); ca.crt holds ten years.
set -euo pipefail
umask 077

if [ "$#" -lt 2 ]; then
  echo "usage: $0 FOLDER NAME [NAME...]" >&2
  exit 2
fi
folder=$1
shift

for file in server.key server.crt; do
  if [ -e "$folder/$file" ]; then
    echo "$folder/$file exists and is not overwritten; move it away first" >&2
    exit 1
  fi
done
mkdir -p "$folder"

if [ ! -e "$folder/ca.key" ] && [ ! -e "$folder/ca.crt" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 \
    -days 3650 -subj "/CN=fedtrellis authority" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$folder/ca.key" -out "$folder/ca.crt" 2>/dev/null
elif [ ! -e "$folder/ca.key" ] || [ ! -e "$folder/ca.crt" ]; then
  echo "$folder has one of ca.key and ca.crt; the other is needed too" >&2
  exit 1
fi

# the names are checked against the subject alternative names, not the common name
names=""
for name in "$@" 127.0.0.1; do
  if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then kind=IP; else kind=DNS; fi
  case ",$names," in *",$kind:$name,"*) continue ;; esac
  names+="${names:+,}$kind:$name"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/extensions" <<END
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
subjectAltName=$names
END
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 \
  -subj "/CN=fedtrellis SuperLink" \
  -keyout "$work/server.key" -out "$work/request" 2>/dev/null
openssl x509 -req -sha256 -days "${DAYS:-365}" -in "$work/request" \
  -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
  -set_serial "0x$(openssl rand -hex 16)" \
  -extfile "$work/extensions" -out "$work/server.crt"
mv "$work/server.key" "$work/server.crt" "$folder/"
chmod 644 "$folder/ca.crt" "$folder/server.crt"
echo "$folder: server.crt for $names"
