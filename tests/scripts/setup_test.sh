#!/usr/bin/env bash
# scripts/setup with programs in the place of apt that only say what they were asked.   setup_test.sh PATH_OF_SETUP
set -euo pipefail
setup="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
fake() {
  cat >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
mkdir "$work/bin"
fake apt-get <<<"#!/bin/sh
echo \"\$@\" >>'$work/asked'
[ \"\$1\" = update ] || [ ! -e '$work/offline' ]"
fake sudo <<<"#!/bin/sh
exec \"\$@\""
# All packages are there but those named in $work/missing.
fake dpkg-query <<<"#!/bin/sh
for package in \"\$@\"; do
  case \"\$package\" in -*|*Package*) continue ;; esac
  grep -qx \"\$package\" '$work/missing' || echo \"\$package installed\"
done"
export PATH="$work/bin:$PATH"
failed() {
  printf '%s\n' "$1"
  cat "$work/err"
  exit 1
}

: >"$work/missing"
"$setup" --for train 2>"$work/err" || failed "nothing is missing, and setup failed"
[[ ! -e "$work/asked" ]] || failed "apt was asked although nothing is missing"

printf 'cmake\nlibdnnl-dev\n' >"$work/missing"
"$setup" --for train 2>"$work/err" || failed "setup failed"
grep -q '^update$' "$work/asked" || failed "no apt-get update"
grep -q 'install -y --no-install-recommends cmake libdnnl-dev$' "$work/asked" || failed "asked: $(cat "$work/asked")"

touch "$work/offline"
code=0
"$setup" --for train 2>"$work/err" || code=$?
[[ $code -eq 1 ]] || failed "code $code without a network, expected 1"
grep -q 'could not install: cmake libdnnl-dev (no network?)' "$work/err" || failed "the message does not name the packages"

code=0
"$setup" --for fun 2>"$work/err" || code=$?
[[ $code -eq 2 ]] || failed "code $code for --for fun, expected 2"
printf 'setup: all as expected\n'
