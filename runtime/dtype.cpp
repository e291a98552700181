#include "lockstep/runtime/dtype.h"

#include <ostream>

namespace lockstep {

size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::uint8:
    case DType::boolean: return 1;
  }
  throw_error("unknown dtype");
}

std::string_view name(DType dtype) {
  constexpr std::string_view kNames[] = {"float64", "float32", "float16", "bfloat16",
                                         "int64",   "int32",   "uint8",   "bool"};
  return kNames[int(dtype)];
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

}  // namespace lockstep
