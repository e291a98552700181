# link_check.sh LIBSIMGPU.a REAL_LIBRARY...: every function of NVIDIA's that the simulator defines must be exported by
# the real libraries. Their prototypes are the compiler's business: the simulator includes NVIDIA's headers.
set -euo pipefail
simulator="$1"
shift
ours="$(nm --defined-only "$simulator" | awk '$2 == "T" { print $3 }' | grep -E '^(cuda|cublas|cudnn|nccl)' | sort -u)"
theirs="$(nm -D --defined-only "$@" | awk 'NF == 3 { sub(/@.*/, "", $3); print $3 }' | sort -u)"
extra="$(comm -23 <(echo "$ours") <(echo "$theirs"))"
if [[ -n "$extra" ]]; then
  echo "defined by the simulator, unknown to the real libraries:" $extra
  exit 1
fi
echo "all $(wc -l <<<"$ours") functions exist in the real libraries"
