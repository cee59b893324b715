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
: "${TLS:?must be the folder with ca.pem, server.pem and server.key}"
: "${STATE:?must be a folder for the database and the results}"
mkdir -p "$STATE"
cd "$STATE"
exec flower-superlink \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
  --ssl-ca-certfile "$TLS/ca.pem" --ssl-certfile "$TLS/server.pem" --ssl-keyfile "$TLS/server.key" \
  --enable-supernode-auth \
  --database "$STATE/superlink.db" \
  --disable-runtime-dependency-installation \
  ${HEALTH:+--health-server-address "$HEALTH"}
