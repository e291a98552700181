#!/usr/bin/env bash
# scripts/fetch_data without a network: found, damaged and missing files.   fetch_data_test.sh PATH_OF_FETCH_DATA
set -euo pipefail
fetch="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache" PIP_NO_INDEX=1 PIP_FIND_LINKS="" LOCKSTEP_MNIST_MIRRORS="file://$work/mirror"
real="${LOCKSTEP_DATA:-}"
unset LOCKSTEP_DATA
names=(train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte)

# expect CODE TEXT ARGUMENTS...: the exit code, and TEXT in what is printed.
expect() {
  local code="$1" text="$2" got=0
  shift 2
  "$fetch" "$@" >"$work/out" 2>"$work/err" || got=$?
  if [[ $got -ne $code ]] || ! grep -qF -- "$text" "$work/out" "$work/err"; then
    printf 'fetch_data %s: code %s, expected %s and "%s" in:\n' "$*" "$got" "$code" "$text"
    cat "$work/out" "$work/err"
    exit 1
  fi
}
make_files() {
  mkdir -p "$1"
  for name in "${names[@]}"; do printf 'made up' | gzip >"$1/$name.gz"; done
}

expect 0 "fetch_data" --help
expect 2 "unknown argument 'cifar'" cifar
expect 2 "--data needs a folder" --data
expect 2 "$work/nowhere: no such folder" --data "$work/nowhere"

make_files "$work/given/mnist"
expect 0 "not the published MNIST file" --data "$work/given"
[[ "$(tail -n 1 "$work/out")" == "$work/given" ]]
LOCKSTEP_DATA="$work/given" expect 0 "MNIST found in $work/given/mnist"
printf 'cut' >"$work/given/mnist/train-labels-idx1-ubyte.gz"
expect 2 "train-labels-idx1-ubyte.gz is damaged" --data "$work/given"

# A mirror with wrong files: named, not kept, and without a package index there is nothing left to try.
make_files "$work/mirror"
expect 1 "train-images-idx3-ubyte.gz is damaged: sha256"
grep -q "give --data DIR" "$work/err"
[[ -z "$(find "$work/cache" -type f)" ]]

if [[ -f "$real/mnist/train-images-idx3-ubyte.gz" ]]; then
  export LOCKSTEP_MNIST_MIRRORS="file://$work/mirror file://$real/mnist"
  expect 0 "MNIST found in $work/cache/lockstep/mnist"
  printf 'x' >>"$work/cache/lockstep/mnist/t10k-images-idx3-ubyte.gz"
  printf 'x' >"$work/cache/lockstep/mnist/t10k-labels-idx1-ubyte.gz"
  expect 0 "t10k-labels-idx1-ubyte.gz is damaged; downloading it again"
  cmp "$work/cache/lockstep/mnist/t10k-labels-idx1-ubyte.gz" "$real/mnist/t10k-labels-idx1-ubyte.gz"
  expect 0 "MNIST found in $work/cache/lockstep/mnist"
fi
printf 'fetch_data: all as expected\n'
