// What this processor has. The library is compiled for x86-64-v3 (AVX2, FMA, F16C, BMI2); everything above is
// dispatched at run time, by oneDNN or by us.
#pragma once

#include <string>

namespace lockstep {

struct CpuFeatures {
  bool baseline = true;  // x86-64-v3; true on other architectures, which run generic code
  bool avx512 = false;   // F, BW, DQ, VL
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
};

const CpuFeatures& cpu_features();
std::string cpu_feature_names();  // "AVX2 AVX-512 AVX512-BF16 AMX", for reports

// Throws below the baseline. A message is also printed when the library is loaded, because code compiled for
// the baseline may stop the program before it gets here.
void require_supported_processor();

}  // namespace lockstep
