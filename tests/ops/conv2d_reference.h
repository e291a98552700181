// Convolution by its definition, in double, for the tests of conv2d.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/ops/conv2d.h"

namespace lockstep::test {

inline Tensor conv2d_reference(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o,
                               bool relu = false) {
  const int64_t N = x.shape()[0], H = x.shape()[1], W = x.shape()[2], C = x.shape()[3];
  const int64_t K = w.shape()[0], R = w.shape()[1], S = w.shape()[2], channels = w.shape()[3];
  const int64_t P = (H + o.padding[0] + o.padding[1] - o.dilation[0] * (R - 1) - 1) / o.stride[0] + 1;
  const int64_t Q = (W + o.padding[2] + o.padding[3] - o.dilation[1] * (S - 1) - 1) / o.stride[1] + 1;
  const std::vector<double> xv = x.to_vector<double>(), wv = w.to_vector<double>();
  const std::vector<double> bv = bias.defined() ? bias.to_vector<double>() : std::vector<double>(size_t(K));
  std::vector<double> y;
  for (int64_t n = 0; n < N; n++)
    for (int64_t p = 0; p < P; p++)
      for (int64_t q = 0; q < Q; q++)
        for (int64_t k = 0; k < K; k++) {
          double sum = bv[size_t(k)];
          const int64_t first = k / (K / o.groups) * channels;
          for (int64_t r = 0; r < R; r++)
            for (int64_t s = 0; s < S; s++) {
              const int64_t h = p * o.stride[0] - o.padding[0] + r * o.dilation[0];
              const int64_t v = q * o.stride[1] - o.padding[2] + s * o.dilation[1];
              if (h < 0 || h >= H || v < 0 || v >= W) continue;
              for (int64_t c = 0; c < channels; c++)
                sum += xv[size_t(((n * H + h) * W + v) * C + first + c)] *
                       wv[size_t(((k * R + r) * S + s) * channels + c)];
            }
          y.push_back(relu ? std::max(sum, 0.0) : sum);
        }
  return from_vector(y, {N, P, Q, K});
}

}  // namespace lockstep::test
