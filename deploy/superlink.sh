#!/bin/sh
# The server: one SuperLink with TLS, which admits registered SuperNodes only.
#
#   TLS    folder with ca.pem, server.pem and server.key (deploy/keys.py server)
#   STATE  folder for Flower's database, and for the runs' results in "outputs"
#   HOST   address to listen on; 127.0.0.1, because the same port serves Flower's Control API, which
#          does not ask for a password: see docs/deployment.md before you change it
#   PORT   8000
#   HEALTH host:port of a gRPC health service, which responds while this process lives; off
set -eu
fail() {  # one line, before anything starts
  echo "$(basename "$0"): $1" >&2
  exit 2
}

need_file() {  # NAME PATH WHAT
  [ -n "$2" ] || fail "$1 must be $3, got nothing (set $1=PATH)"
  [ -f "$2" ] || fail "$1 must be $3, got $2: there is no such file"
  [ -r "$2" ] || fail "$1 must be $3, got $2: $(id -un) may not read it"
}

what="the folder with ca.pem, server.pem and server.key"
[ -n "${TLS:-}" ] || fail "TLS must be $what, got nothing (set TLS=PATH)"
for name in ca.pem server.pem server.key; do
  need_file "TLS/$name" "$TLS/$name" "a file that deploy/keys.py server writes"
done
[ -n "${STATE:-}" ] || fail "STATE must be a folder for the database and the results, got nothing"
mkdir -p "$STATE" || fail "STATE must be a folder that can be written, got $STATE"
cd "$STATE"
# The processes of this machine reach each other without the proxy that the environment may name.
if [ -n "${http_proxy:-}${https_proxy:-}${all_proxy:-}${HTTP_PROXY:-}${HTTPS_PROXY:-}${ALL_PROXY:-}" ]
then
  no_proxy="${no_proxy:-${NO_PROXY:-}}"
  [ "$no_proxy" = '*' ] || no_proxy="${no_proxy:+$no_proxy,}127.0.0.1,localhost"
  export no_proxy NO_PROXY="$no_proxy"
fi
exec flower-superlink \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
  --ssl-ca-certfile "$TLS/ca.pem" --ssl-certfile "$TLS/server.pem" --ssl-keyfile "$TLS/server.key" \
  --enable-supernode-auth \
  --database "$STATE/superlink.db" \
  --disable-runtime-dependency-installation \
  ${HEALTH:+--health-server-address "$HEALTH"}
