# Shared by the scripts of this folder: `source "$(dirname "${BASH_SOURCE[0]}")/common.sh"`. Not a program.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$root/build"
jobs="${LOCKSTEP_JOBS:-$(nproc)}"

note() { printf '%s\n' "$*" >&2; }

# fail CODE MESSAGE: 2 for the user's mistakes, 1 for faults.
fail() {
  local code="$1"
  shift
  note "$(basename "$0"): $*"
  exit "$code"
}

# Prints the head comment of the script, which is its manual.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# quietly LOG COMMAND...: shows the command's output only if it fails.
quietly() {
  local log="$1" code=0
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 || code=$?
  if [[ $code -ne 0 ]]; then
    tail -n 60 "$log" >&2
    fail 1 "'$*' failed with code $code; the whole output is in $log"
  fi
}

# configure FOLDER [cmake flags]: Ninja, and ccache where it is installed.
configure() {
  local folder="$1"
  shift
  local flags=(-G Ninja -S "$root" -B "$folder" "$@")
  if command -v ccache >/dev/null; then
    export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
    flags+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  quietly "$folder/configure.log" cmake "${flags[@]}"
}
