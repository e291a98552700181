// Convolution as a matrix product over patches: row (p, q) of `columns` holds the R * S * C/groups values of
// x under the kernel at output position (p, q), so that y = columns w^T. Patches are made for a few rows of
// one sample at a time and stay in the cache.
#include <cstring>

#include "lockstep/ops/conv2d_plans.h"
#include "lockstep/ops/gemm.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kPatchElements = 65536;

// Rows of output per block of patches.
int64_t block_rows(const ConvGeometry& g) {
  const int64_t row = g.Q * g.R * g.S * g.group_channels();
  return std::clamp<int64_t>(kPatchElements / std::max<int64_t>(row, 1), 1, g.P);
}

// Does an image serve as its own patches?
bool is_pointwise(const ConvGeometry& g) {
  return g.R == 1 && g.S == 1 && g.stride_h == 1 && g.stride_w == 1 && !g.padded();
}

// Calls piece(image offset, column offset, values, inside) for the pieces of which the patches of rows
// [begin, end) consist; the offsets are in elements of one sample and of the block.
template <class Piece>
void for_patches(const ConvGeometry& g, int64_t group, int64_t begin, int64_t end, Piece&& piece) {
  const int64_t channels = g.group_channels(), first_channel = group * channels;
  const bool rows_contiguous = g.groups == 1 && g.dilation_w == 1;
  int64_t column = 0;
  for (int64_t p = begin; p < end; p++)
    for (int64_t q = 0; q < g.Q; q++)
      for (int64_t r = 0; r < g.R; r++, column += g.S * channels) {
        const int64_t h = p * g.stride_h - g.top + r * g.dilation_h, w = q * g.stride_w - g.left;
        const int64_t image = (h * g.W + w) * g.C + first_channel;
        if (h < 0 || h >= g.H) {
          piece(0, column, g.S * channels, false);
        } else if (rows_contiguous) {
          const int64_t before = std::clamp<int64_t>(-w, 0, g.S),
                        inside = std::clamp<int64_t>(g.W - w, before, g.S);
          if (before > 0) piece(0, column, before * channels, false);
          if (inside > before)
            piece(image + before * channels, column + before * channels, (inside - before) * channels, true);
          if (g.S > inside) piece(0, column + inside * channels, (g.S - inside) * channels, false);
        } else {
          for (int64_t s = 0; s < g.S; s++) {
            const int64_t at = w + s * g.dilation_w;
            piece(image + s * g.dilation_w * g.C, column + s * channels, channels, at >= 0 && at < g.W);
          }
        }
      }
}

template <class T>
void gather_patches(const ConvGeometry& g, int64_t group, int64_t begin, int64_t end, const T* x,
                    T* columns) {
  for_patches(g, group, begin, end, [&](int64_t image, int64_t column, int64_t values, bool inside) {
    if (inside)
      for (int64_t i = 0; i < values; i++) columns[column + i] = x[image + i];
    else std::memset(columns + column, 0, size_t(values) * sizeof(T));
  });
}

template <class T>
void scatter_patches(const ConvGeometry& g, int64_t group, int64_t begin, int64_t end, const T* columns,
                     T* dx) {
  for_patches(g, group, begin, end, [&](int64_t image, int64_t column, int64_t values, bool inside) {
    if (inside)
      for (int64_t i = 0; i < values; i++) dx[image + i] += columns[column + i];
  });
}

template <class T>
size_t patch_bytes(const ConvGeometry& g) {
  return is_pointwise(g) ? 0 : size_t(block_rows(g) * g.Q * g.R * g.S * g.group_channels()) * sizeof(T);
}

// Calls block(begin, end) for the blocks of rows of one sample.
template <class Block>
void for_blocks(const ConvGeometry& g, Block&& block) {
  const int64_t rows = block_rows(g);
  for (int64_t begin = 0; begin < g.P; begin += rows) block(begin, std::min(g.P, begin + rows));
}

}  // namespace

template <class T>
void im2col_forward(const ConvGeometry& g, const T* x, const T* w, const T* bias, bool relu, T* y) {
  const int64_t depth = g.R * g.S * g.group_channels(), outputs = g.K / g.groups;
  const int64_t rows = block_rows(g), blocks = (g.P + rows - 1) / rows;
  const int64_t items = g.N * blocks, grain = std::max<int64_t>(1, items / 64);
  const ThreadScratch scratch(patch_bytes<T>(g));
  run_chunks(g, (items + grain - 1) / grain, [&](int64_t chunk) {
    const int64_t first = chunk * grain, last = std::min(items, first + grain);
    T* columns = static_cast<T*>(scratch.get());
    for (int64_t item = first; item < last; item++) {
      const int64_t begin = item % blocks * rows, end = std::min(g.P, begin + rows);
      const T* x_n = x + item / blocks * g.x_sample();
      T* y_n = y + item / blocks * g.y_sample() + begin * g.Q * g.K;
      for (int64_t group = 0; group < g.groups; group++) {
        const T* a = columns;
        int64_t lda = depth;
        if (is_pointwise(g)) a = x_n + begin * g.W * g.C + group * depth, lda = g.C;
        else gather_patches(g, group, begin, end, x_n, columns);
        const int64_t k = group * outputs;
        gemm_tile<T>(false, true, (end - begin) * g.Q, outputs, depth, 1, a, lda, w + k * depth, depth, 0,
                     y_n + k, g.K, bias ? bias + k : nullptr);
      }
      if (relu) relu_in_place(y_n, (end - begin) * g.Q * g.K);
    }
  });
}

template <class T>
void im2col_backward_input(const ConvGeometry& g, const T* dy, const T* w, T* dx) {
  const int64_t depth = g.R * g.S * g.group_channels(), outputs = g.K / g.groups;
  const ConvChunks chunks = conv_chunks(ConvDirection::backward_input, g);
  const ThreadScratch scratch(patch_bytes<T>(g));
  run_chunks(g, chunks.count, [&](int64_t chunk) {
    T* columns = static_cast<T*>(scratch.get());
    for (int64_t n = chunk * chunks.samples; n < std::min(g.N, (chunk + 1) * chunks.samples); n++) {
      T* dx_n = dx + n * g.x_sample();
      if (!is_pointwise(g)) std::memset(dx_n, 0, size_t(g.x_sample()) * sizeof(T));
      for_blocks(g, [&](int64_t begin, int64_t end) {
        for (int64_t group = 0; group < g.groups; group++) {
          T* c = columns;
          int64_t ldc = depth;
          if (is_pointwise(g)) c = dx_n + begin * g.W * g.C + group * depth, ldc = g.C;
          const int64_t k = group * outputs;
          gemm_tile<T>(false, false, (end - begin) * g.Q, depth, outputs, 1,
                       dy + n * g.y_sample() + begin * g.Q * g.K + k, g.K, w + k * depth, depth, 0, c, ldc);
          if (!is_pointwise(g)) scatter_patches(g, group, begin, end, columns, dx_n);
        }
      });
    }
  });
}

template <class T>
void im2col_backward_weight(const ConvGeometry& g, const T* x, const T* dy, T* dw) {
  const int64_t depth = g.R * g.S * g.group_channels(), outputs = g.K / g.groups;
  const ConvChunks chunks = conv_chunks(ConvDirection::backward_weight, g);
  Memory partial_memory(Device(), size_t(chunks.count * g.weights()) * sizeof(T));
  T* partials = static_cast<T*>(partial_memory.data());
  const ThreadScratch scratch(patch_bytes<T>(g));
  run_chunks(g, chunks.count, [&](int64_t chunk) {
    T* columns = static_cast<T*>(scratch.get());
    bool first = true;
    for (int64_t n = chunk * chunks.samples; n < std::min(g.N, (chunk + 1) * chunks.samples); n++)
      for_blocks(g, [&](int64_t begin, int64_t end) {
        for (int64_t group = 0; group < g.groups; group++) {
          const T* b = columns;
          int64_t ldb = depth;
          if (is_pointwise(g)) b = x + n * g.x_sample() + begin * g.W * g.C + group * depth, ldb = g.C;
          else gather_patches(g, group, begin, end, x + n * g.x_sample(), columns);
          const int64_t k = group * outputs;
          gemm_tile<T>(true, false, outputs, depth, (end - begin) * g.Q, 1,
                       dy + n * g.y_sample() + begin * g.Q * g.K + k, g.K, b, ldb, first ? 0 : 1,
                       partials + chunk * g.weights() + k * depth, depth);
        }
        first = false;
      });
  });
  add_partials(partials, chunks.count, g.weights(), g.weights(), dw);
}

#define LOCKSTEP_INSTANTIATE(T)                                                              \
  template void im2col_forward(const ConvGeometry&, const T*, const T*, const T*, bool, T*); \
  template void im2col_backward_input(const ConvGeometry&, const T*, const T*, T*);          \
  template void im2col_backward_weight(const ConvGeometry&, const T*, const T*, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::cpu
