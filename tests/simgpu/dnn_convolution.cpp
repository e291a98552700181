#include "simgpu/dnn_convolution.h"

#include <algorithm>

namespace simgpu {
namespace {

// A shape with its spatial axes padded in front to three.
struct Shape3 {
  int64_t d, h, w;
};
Shape3 spatial(const std::vector<int64_t>& dims) {
  const size_t n = dims.size();
  return {n > 4 ? dims[n - 3] : 1, n > 3 ? dims[n - 2] : 1, dims[n - 1]};
}
Shape3 option(const std::vector<int64_t>& v, int64_t absent) {
  const size_t n = v.size();
  return {n > 2 ? v[n - 3] : absent, n > 1 ? v[n - 2] : absent, v[n - 1]};
}

// Output positions o in [begin, end) with 0 <= o * stride + shift < size.
void valid(int64_t out, int64_t size, int64_t stride, int64_t shift, int64_t* begin, int64_t* end) {
  *begin = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  *end = std::min(out, size - shift <= 0 ? 0 : (size - shift + stride - 1) / stride);
}

}  // namespace

void Convolution::run(Direction direction, const float* x, const float* w, float* y) const {
  const Shape3 in = spatial(forward_x), k = spatial(filter), out = spatial(forward_y);
  const Shape3 pad = option(pads, 0), stride = option(strides, 1), dilation = option(dilations, 1);
  const int64_t batch = forward_x[0], channels = forward_x[1], outputs = filter[0], depth = filter[1];
  const int64_t per_group = outputs / (channels / depth);  // output channels that see the same inputs
  auto* dx = const_cast<float*>(x);
  auto* dw = const_cast<float*>(w);

  for (int64_t n = 0; n < batch; ++n)
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t c = 0; c < depth; ++c) {
        const int64_t channel = o / per_group * depth + c;
        for (int64_t kd = 0; kd < k.d; ++kd)
          for (int64_t kh = 0; kh < k.h; ++kh)
            for (int64_t kw = 0; kw < k.w; ++kw) {
              const int64_t tap = (((o * depth + c) * k.d + kd) * k.h + kh) * k.w + kw;
              const int64_t shift_d = kd * dilation.d - pad.d, shift_h = kh * dilation.h - pad.h,
                            shift_w = kw * dilation.w - pad.w;
              int64_t d0, d1, h0, h1, w0, w1;
              valid(out.d, in.d, stride.d, shift_d, &d0, &d1);
              valid(out.h, in.h, stride.h, shift_h, &h0, &h1);
              valid(out.w, in.w, stride.w, shift_w, &w0, &w1);
              for (int64_t od = d0; od < d1; ++od)
                for (int64_t oh = h0; oh < h1; ++oh) {
                  const int64_t in_row = (((n * channels + channel) * in.d + od * stride.d + shift_d) * in.h +
                                          oh * stride.h + shift_h) *
                                             in.w +
                                         shift_w;
                  const int64_t out_row = (((n * outputs + o) * out.d + od) * out.h + oh) * out.w;
                  if (direction == forward) {
                    const float weight = w[tap];
                    for (int64_t ow = w0; ow < w1; ++ow)
                      y[out_row + ow] += weight * x[in_row + ow * stride.w];
                  } else if (direction == data) {
                    const float weight = w[tap];
                    for (int64_t ow = w0; ow < w1; ++ow)
                      dx[in_row + ow * stride.w] += weight * y[out_row + ow];
                  } else {
                    float sum = 0;
                    for (int64_t ow = w0; ow < w1; ++ow) sum += y[out_row + ow] * x[in_row + ow * stride.w];
                    dw[tap] += sum;
                  }
                }
            }
      }
}

}  // namespace simgpu
