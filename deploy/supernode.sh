#!/bin/sh
# One device: a SuperNode that hosts one client, with this client's data and no other.
#
#   SUPERLINK  host:port of the server
#   CA         ca.pem of the server
#   KEY        this node's private key; its public key is registered at the server
#   CLIENT     client id, a whole number from 0, as for this key in the server's engine.node_keys
#   DATA       this client's .npz file, .csv file or folder of images
#   POLICY     file with the runs that this device allows; by default node.yaml beside DATA, if any
#   PORT       9094, for this node's own processes, on 127.0.0.1
#   HEALTH     host:port of a gRPC health service, which responds while this process lives; off
#   PRELOAD    1: import PyTorch once, not for every message (docs/deployment.md); 0
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

[ -n "${SUPERLINK:-}" ] || fail "SUPERLINK must be host:port of the server, got nothing"
need_file CA "${CA:-}" "ca.pem of the server"
need_file KEY "${KEY:-}" "the private key of this node"
case "${CLIENT:-}" in
  '' | *[!0-9]*) fail "CLIENT must be the client id, a whole number from 0, got ${CLIENT:-nothing}" ;;
esac
what="the data of this client, a file or a folder"
case "${DATA:-}" in
  '') fail "DATA must be $what, got nothing (set DATA=PATH)" ;;
  *[*?[]*) ;;  # a pattern, which the node itself looks up
  *) [ -e "$DATA" ] || fail "DATA must be $what, got $DATA: there is no such file" ;;
esac
[ -z "${POLICY:-}" ] || need_file POLICY "$POLICY" "the file with the runs that this device allows"
set -- flower-supernode \
  --superlink "$SUPERLINK" --root-certificates "$CA" \
  --auth-supernode-private-key "$KEY" \
  --node-config "client-id=$CLIENT data-path=\"$DATA\"${POLICY:+ policy-path=\"$POLICY\"}" \
  --host 127.0.0.1 --port "${PORT:-9094}" \
  ${HEALTH:+--health-server-address "$HEALTH"}
case "${PRELOAD:-0}" in
  0) ;;
  1) set -- python "$(dirname "$0")/preload.py" "$@" ;;
  *) fail "PRELOAD must be 0 or 1, got $PRELOAD" ;;
esac
# The processes of this machine reach each other without the proxy that the environment may name.
if [ -n "${http_proxy:-}${https_proxy:-}${all_proxy:-}${HTTP_PROXY:-}${HTTPS_PROXY:-}${ALL_PROXY:-}" ]
then
  no_proxy="${no_proxy:-${NO_PROXY:-}}"
  [ "$no_proxy" = '*' ] || no_proxy="${no_proxy:+$no_proxy,}127.0.0.1,localhost"
  export no_proxy NO_PROXY="$no_proxy"
fi
exec "$@"
