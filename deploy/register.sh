#!/bin/sh
# Admits nodes: registers every public key of the server's file (engine.node_keys) at the SuperLink,
# at the start and after every change of the file. A key stays registered if its line is removed.
#
#   NODES       the file: lines of client ids and a public key
#   READY       file that is created when all keys are registered
#   CONNECTION  the SuperLink's name in $FLWR_HOME/config.toml; deployment
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

need_file NODES "${NODES:-}" "the file of client ids and public keys"
[ -n "${READY:-}" ] || fail "READY must be the path of a file for when all keys are registered"
trap 'exit 0' TERM INT
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

register() {  # one line of the file
  echo "$2" > "$folder/key.pub"
  if said=$(flwr supernode register "$folder/key.pub" "${CONNECTION:-deployment}" \
    --name "client-$1" 2>&1)
  then
    echo "client $1: registered"
  else
    case $said in
      *"already in use"*) echo "client $1: was registered before" ;;
      *) echo "client $1: $said" >&2; return 1 ;;
    esac
  fi
}

register_new() {  # what is in the file and was not yet done
  while read -r clients key; do
    case $clients in
      '' | '#'*) continue ;;
    esac
    grep -qxF "$clients $key" "$folder/done" && continue
    register "$clients" "$key" || return 1
    echo "$clients $key" >> "$folder/done"
  done < "$NODES"
}

: > "$folder/done"
while :; do
  pause=2
  if register_new; then
    : > "$READY"
  else
    pause=5  # such as no SuperLink yet
  fi
  sleep "$pause" & wait $!  # in the background, so that a signal ends the wait
done
