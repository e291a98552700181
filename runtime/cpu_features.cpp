// Compiled below the baseline (see CMakeLists.txt), so that it runs on the processors that it refuses.
#include "lockstep/runtime/cpu_features.h"

#include <cstdio>

#include "lockstep/runtime/check.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#define LOCKSTEP_X86 1
#endif

namespace lockstep {
namespace {

constexpr const char* kRefusal =
    "[processor] this processor lacks AVX2, FMA, F16C or BMI2; Lockstep needs x86-64-v3 (Intel Haswell, AMD "
    "Zen or newer)";

CpuFeatures detect() {
  CpuFeatures features;
#ifdef LOCKSTEP_X86
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  features.baseline = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  features.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (features.avx512) {
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) features.avx512_bf16 = a & (1u << 5);
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) features.amx_bf16 = (d & (1u << 24)) && (d & (1u << 22));
  }
#endif
  return features;
}

#ifdef LOCKSTEP_X86
__attribute__((constructor(101))) void announce_unsupported_processor() {
  if (!detect().baseline) std::fprintf(stderr, "%s\n", kRefusal);
}
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

std::string cpu_feature_names() {
#ifdef LOCKSTEP_X86
  const CpuFeatures& features = cpu_features();
  std::string names = "AVX2";
  if (features.avx512) names += " AVX-512";
  if (features.avx512_bf16) names += " AVX512-BF16";
  if (features.amx_bf16) names += " AMX";
  return names;
#else
  return "generic";
#endif
}

void require_supported_processor() {
  if (!cpu_features().baseline) throw_error(kRefusal);
}

}  // namespace lockstep
