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
: "${SUPERLINK:?must be host:port of the server}"
: "${CA:?must be ca.pem of the server}"
: "${KEY:?must be the path of the private key of this node}"
: "${CLIENT:?must be the client id, a whole number from 0}"
: "${DATA:?must be the path of the data of this client}"
set -- flower-supernode \
  --superlink "$SUPERLINK" --root-certificates "$CA" \
  --auth-supernode-private-key "$KEY" \
  --node-config "client-id=$CLIENT data-path=\"$DATA\"${POLICY:+ policy-path=\"$POLICY\"}" \
  --host 127.0.0.1 --port "${PORT:-9094}" \
  ${HEALTH:+--health-server-address "$HEALTH"}
case "${PRELOAD:-0}" in
  0) ;;
  1) set -- python "$(dirname "$0")/preload.py" "$@" ;;
  *) echo "PRELOAD must be 0 or 1, got $PRELOAD" >&2; exit 1 ;;
esac
exec "$@"
