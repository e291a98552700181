// How batch norm's CPU kernels walk over x, a matrix of rows [rows, C].
//
// Note [Lines]. Loops run over lines: as many rows as make at least 64 elements, with the values per channel
// repeated over the line. So the inner loops are long vector loops for any C, 1 and 6 included. The last line
// may be shorter.
//
// Note [Centred values]. (x - mean) * scale with mean rounded to float would lose what float cannot hold of
// the mean. So mean = high + low with high a float: x - high is nearly exact where x is near the mean, and
// low goes into the shift.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cpu::batch_norm_detail {

struct Lines {
  int64_t channels, rows;
  int64_t length;  // of a line, in elements
  int64_t count;
  int64_t per_chunk;  // at most 64 chunks, whose partial sums are kept

  explicit Lines(const Tensor& x) {
    channels = x.shape().back();
    rows = x.numel() / channels;
    length = channels * std::max<int64_t>(1, (64 + channels - 1) / channels);
    count = (x.numel() + length - 1) / length;
    per_chunk = std::max<int64_t>({1, kElementGrain / length, (count + 63) / 64});
  }
  int64_t elements() const { return rows * channels; }
  int64_t chunks() const { return (count + per_chunk - 1) / per_chunk; }

  // Calls body(offset, rows, length) for the lines of a chunk, kGroup full ones together where there are;
  // rows is a compile-time constant.
  static constexpr int kGroup = 4;
  template <class F>
  void for_groups(int64_t chunk, F&& body) const {
    const int64_t end = std::min(elements(), (chunk + 1) * per_chunk * length);
    int64_t at = chunk * per_chunk * length;
    for (; at + kGroup * length <= end; at += kGroup * length)
      body(at, std::integral_constant<int, kGroup>(), length);
    for (; at < end; at += length) body(at, std::integral_constant<int, 1>(), std::min(length, end - at));
  }
};

// `parameter` as numbers, or `otherwise` for each channel if it is undefined.
inline std::vector<double> channel_values(const Tensor& parameter, double otherwise, int64_t channels) {
  return parameter.defined() ? parameter.to_vector<double>()
                             : std::vector<double>(size_t(channels), otherwise);
}

inline void store_channels(const std::vector<double>& values, Tensor& out) {
  dispatch_float(out.dtype(), [&]<class T>() {
    T* y = out.data<T>();
    for (size_t c = 0; c < values.size(); c++) store(y + c, Compute<T>(values[c]));
  });
}

// values(c) repeated over a line.
template <class C, class F>
std::vector<C> line_of(const Lines& lines, F&& values) {
  std::vector<C> line(size_t(lines.length));
  for (int64_t j = 0; j < lines.length; j++) line[size_t(j)] = C(values(size_t(j % lines.channels)));
  return line;
}

// What the forward pass does to the elements of a line: (x - high) * scale + shift, Note [Centred values].
template <class C>
struct Normalizer {
  std::vector<C> high, scale, shift;

  Normalizer(const Lines& lines, const Tensor& weight, const Tensor& bias, const Tensor& mean,
             const Tensor& rstd) {
    const std::vector<double> w = channel_values(weight, 1, lines.channels),
                              b = channel_values(bias, 0, lines.channels);
    const double *m = mean.data<double>(), *r = rstd.data<double>();
    high = line_of<C>(lines, [&](size_t c) { return m[c]; });
    scale = line_of<C>(lines, [&](size_t c) { return r[c] * w[c]; });
    shift = line_of<C>(lines, [&](size_t c) { return b[c] - (m[c] - double(C(m[c]))) * r[c] * w[c]; });
  }
};

}  // namespace lockstep::cpu::batch_norm_detail
