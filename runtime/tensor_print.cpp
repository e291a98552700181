#include <cstdio>
#include <ostream>

#include "lockstep/runtime/tensor.h"

namespace lockstep {
namespace {

constexpr int64_t kShortenAbove = 1000;  // elements
constexpr int64_t kEdge = 3;             // entries shown at each end of a shortened axis

std::string format_value(double value, DType dtype) {
  if (dtype == DType::boolean) return value != 0 ? "true" : "false";
  char text[32];
  std::snprintf(text, sizeof text, is_floating(dtype) ? "%.5g" : "%.0f", value);
  return text;
}

void print_axis(std::string& out, const Tensor& x, int indent, bool shorten) {
  if (x.ndim() == 0) {
    // int64 beyond 2^53 would lose digits as a double
    out += x.dtype() == DType::int64 ? std::to_string(x.item<int64_t>())
                                     : format_value(x.item<double>(), x.dtype());
    return;
  }
  out += '[';
  int64_t size = x.shape()[0];
  for (int64_t i = 0; i < size; i++) {
    if (i > 0) out += x.ndim() > 1 ? ",\n" + std::string(size_t(indent + 1), ' ') : ", ";
    if (shorten && size > 2 * kEdge && i == kEdge) {
      out += "...";
      i = size - kEdge - 1;
      continue;
    }
    print_axis(out, x.select(0, i), indent + 1, shorten);
  }
  out += ']';
}

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "tensor(undefined)";
  std::string out = "tensor(";
  if (!device().is_meta()) {
    print_axis(out, detach(), 7, numel() > kShortenAbove);
    out += ", ";
  }
  return out +
         concat("shape=", shape(), ", ", dtype(), ", ", device(), requires_grad() ? ", requires_grad)" : ")");
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.to_string(); }

}  // namespace lockstep
