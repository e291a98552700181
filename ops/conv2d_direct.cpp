// The direct plan: own loops over images of few channels, where a library's vectors of channels stay empty.
// Vectors run over filters instead (in backward of the input over the columns and channels of a row of the
// kernel), and each value of the image is broadcast.
#include "lockstep/ops/conv2d_direct.h"

#include <cstring>

#include "lockstep/ops/conv2d_plans.h"

namespace lockstep::cpu {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// One sample with its padding, [top + H + bottom, (left + W + right) * C]. The image itself where there is
// none.
class PaddedImage {
 public:
  static size_t bytes(const ConvGeometry& g) {
    return g.padded() ? size_t((g.top + g.H + g.bottom) * row_values(g)) * sizeof(float) : 0;
  }
  static int64_t row_values(const ConvGeometry& g) { return (g.left + g.W + g.right) * g.C; }

  PaddedImage(const ConvGeometry& g, void* memory) : g_(g), padded_(static_cast<float*>(memory)) {
    if (padded_) std::memset(padded_, 0, bytes(g));
  }
  const float* load(const float* x) {
    if (!padded_) return x;
    for (int64_t h = 0; h < g_.H; h++)
      std::memcpy(padded_ + (g_.top + h) * row_values(g_) + g_.left * g_.C, x + h * g_.W * g_.C,
                  size_t(g_.W * g_.C) * sizeof(float));
    return padded_;
  }

 private:
  const ConvGeometry& g_;
  float* padded_;
};

template <class Body>
void for_samples(const ConvGeometry& g, const ConvChunks& chunks, int64_t chunk, Body&& body) {
  for (int64_t n = chunk * chunks.samples; n < std::min(g.N, (chunk + 1) * chunks.samples); n++) body(n);
}

}  // namespace

bool direct_supports(const ConvGeometry& g) {
  return g.groups == 1 && g.C <= 8 && g.stride_h == 1 && g.stride_w == 1 && g.dilation_h == 1 &&
         g.dilation_w == 1;
}

void direct_forward(const DirectKernels& kernels, const ConvGeometry& g, const float* x, const float* w,
                    const float* bias, bool relu, float* y) {
  const int64_t inner = g.S * g.C, depth = g.R * inner, step = round_up(g.K, kernels.lanes);
  const Memory memory(Device(), size_t((depth + 1) * step) * sizeof(float));
  float* packed = static_cast<float*>(memory.data());  // [depth, step], then the bias
  std::memset(packed, 0, memory.bytes());
  for (int64_t k = 0; k < g.K; k++)
    for (int64_t i = 0; i < depth; i++) packed[i * step + k] = w[k * depth + i];
  if (bias) std::memcpy(packed + depth * step, bias, size_t(g.K) * sizeof(float));

  const ConvChunks chunks = conv_chunks(ConvDirection::forward, g);
  const ThreadScratch scratch(PaddedImage::bytes(g));
  run_chunks(g, chunks.count, [&](int64_t chunk) {
    PaddedImage image(g, scratch.get());
    for_samples(g, chunks, chunk, [&](int64_t n) {
      const int64_t row_step = PaddedImage::row_values(g);
      DirectRow row{.x = image.load(x + n * g.x_sample()),
                    .row_step = row_step,
                    .pixel_step = g.C,
                    .rows = g.R,
                    .inner = inner,
                    .w = packed,
                    .w_step = step,
                    .bias = packed + depth * step,
                    .relu = relu,
                    .y = y + n * g.y_sample(),
                    .y_step = g.K,
                    .pixels = g.Q,
                    .lanes = g.K};
      for (int64_t p = 0; p < g.P; p++, row.x += row_step, row.y += g.Q * g.K) kernels.row(row);
    });
  });
}

// For each row of the image, what every output column gives to the pixels under its row of the kernel is
// summed over filters and rows of the kernel in registers, and then gathered: adding each contribution to dx
// in memory costs more than twice as much.
void direct_backward_input(const DirectKernels& kernels, const ConvGeometry& g, const float* dy,
                           const float* w, float* dx) {
  const int64_t inner = g.S * g.C, step = round_up(inner, kernels.lanes);
  const Memory memory(Device(), size_t(g.R * g.K * step) * sizeof(float));
  float* packed = static_cast<float*>(memory.data());  // [R, K, step]
  std::memset(packed, 0, memory.bytes());
  for (int64_t k = 0; k < g.K; k++)
    for (int64_t r = 0; r < g.R; r++)
      std::memcpy(packed + (r * g.K + k) * step, w + (k * g.R + r) * inner, size_t(inner) * sizeof(float));

  const ConvChunks chunks = conv_chunks(ConvDirection::backward_input, g);
  const ThreadScratch scratch(size_t(g.Q * step + 8) * sizeof(float));
  run_chunks(g, chunks.count, [&](int64_t chunk) {
    float* sums = static_cast<float*>(scratch.get());
    for_samples(g, chunks, chunk, [&](int64_t n) {
      for (int64_t h = 0; h < g.H; h++) {
        const int64_t at =
            h + g.top;  // in the padded image; output row at - r reaches it by row r of the kernel
        const int64_t first = std::max<int64_t>(0, at - g.P + 1), end = std::min(g.R, at + 1);
        float* dx_row = dx + n * g.x_sample() + h * g.W * g.C;
        if (first >= end) {
          std::memset(dx_row, 0, size_t(g.W * g.C) * sizeof(float));
          continue;
        }
        kernels.row({.x = dy + n * g.y_sample() + (at - first) * g.Q * g.K,
                     .row_step = -g.Q * g.K,
                     .pixel_step = g.K,
                     .rows = end - first,
                     .inner = g.K,
                     .w = packed + first * g.K * step,
                     .w_step = step,
                     .bias = nullptr,
                     .relu = false,
                     .y = sums,
                     .y_step = step,
                     .pixels = g.Q,
                     .lanes = step});
        kernels.gather(sums, step, g.Q, g.S, g.left, g.C, g.W, dx_row);
      }
    });
  });
}

void direct_backward_weight(const DirectKernels& kernels, const ConvGeometry& g, const float* x,
                            const float* dy, float* dw) {
  const int64_t inner = g.S * g.C, depth = g.R * inner, step = round_up(g.K, kernels.lanes);
  const ConvChunks chunks = conv_chunks(ConvDirection::backward_weight, g);
  const Memory memory(Device(), size_t(chunks.count * depth * step) * sizeof(float));
  float* partials = static_cast<float*>(memory.data());  // [chunks, depth, step]
  // Every place of the kernel reads dy again: rows of it that stay in the cache.
  const int64_t band = std::max<int64_t>(1, 8192 / (g.Q * g.K));
  const ThreadScratch scratch(PaddedImage::bytes(g));
  run_chunks(g, chunks.count, [&](int64_t chunk) {
    PaddedImage image(g, scratch.get());
    float* sums = partials + chunk * depth * step;
    std::memset(sums, 0, size_t(depth * step) * sizeof(float));
    for_samples(g, chunks, chunk, [&](int64_t n) {
      const int64_t row_step = PaddedImage::row_values(g);
      const float* x_n = image.load(x + n * g.x_sample());
      for (int64_t p = 0; p < g.P; p += band)
        kernels.weight_gradient({.x = x_n + p * row_step,
                                 .row_step = row_step,
                                 .channels = g.C,
                                 .rows = g.R,
                                 .inner = inner,
                                 .dy = dy + n * g.y_sample() + p * g.Q * g.K,
                                 .P = std::min(band, g.P - p),
                                 .Q = g.Q,
                                 .filters = g.K,
                                 .sums = sums,
                                 .sum_step = step});
    });
  });
  add_partials(partials, chunks.count, depth * step, depth * step, partials);
  for (int64_t k = 0; k < g.K; k++)
    for (int64_t i = 0; i < depth; i++) dw[k * depth + i] = partials[i * step + k];
}

}  // namespace lockstep::cpu
