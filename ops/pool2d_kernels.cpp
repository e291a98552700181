// CPU kernels of pool2d.h. Channels are contiguous, so a window is worked off for a block of channels at a
// time.
//
// Note [Spilling lanes]. Blocks have a fixed number of lanes, which makes them vector code even where C is 1
// or 6. The last block of a pixel then reaches into the pixels behind it. Reading there is harmless as long
// as the tensor goes on; writing is, as long as the row goes on, since its pixels are written from left to
// right. Where either fails the exact number of lanes is used.
#include <algorithm>
#include <vector>

#include "lockstep/ops/pool2d.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {
namespace {

constexpr int kWide = 32, kNarrow = 8;  // lanes of a block

// Calls block(c, lanes) over the channels of one pixel; lanes is a compile-time constant
// (std::integral_constant) for all but the exact rest.
template <class F>
inline void for_channels(int64_t channels, bool may_spill, F&& block) {
  int64_t c = 0;
  for (; c + kWide <= channels; c += kWide) block(c, std::integral_constant<int, kWide>());
  const int64_t fixed_end = may_spill ? channels : channels - kNarrow + 1;
  for (; c < fixed_end; c += kNarrow) block(c, std::integral_constant<int, kNarrow>());
  if (c < channels) block(c, int(channels - c));
}

struct Span {
  int64_t begin, end;
};

// Of every output its inputs, or of every input its outputs: found once a call, as they take divisions.
std::vector<Span> input_spans(const PoolAxis& axis) {
  std::vector<Span> spans;
  for (int64_t o = 0; o < axis.out; o++) spans.push_back({axis.begin(o), axis.end(o)});
  return spans;
}
std::vector<Span> output_spans(const PoolAxis& axis) {
  std::vector<Span> spans;
  for (int64_t i = 0; i < axis.in; i++) spans.push_back({axis.first_output(i), axis.last_output(i) + 1});
  return spans;
}

int64_t row_grain(int64_t elements_per_row) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, elements_per_row));
}

// A window clipped to the input. `place` numbers its elements for max_pool2d's index.
struct Window {
  int64_t row_stride, column_stride;  // in elements
  int rows, columns;
  int place, place_stride;  // of its first element; from row to row
};

// True if v replaces the maximum so far: a tie keeps the first, a NaN stays.
template <class C>
inline bool replaces(C v, C best) {
  return (v > best) | (v != v);
}

template <class T, class Index, class Lanes>
inline void max_window(const T* x, const Window& w, T* y, Index* index, Lanes lanes) {
  using C = Compute<T>;
  C best[kWide];
  int32_t place[kWide];
  if (w.rows == 2 &&
      w.columns == 2) {  // by far the most common: all four at once, without a round trip through memory
    const T *x01 = x + w.column_stride, *x10 = x + w.row_stride, *x11 = x10 + w.column_stride;
    const int32_t first = w.place, below = w.place + w.place_stride;
#pragma omp simd
    for (int l = 0; l < lanes; l++) {
      C v = C(x[l]);
      int32_t at = first;
      const C v01 = C(x01[l]), v10 = C(x10[l]), v11 = C(x11[l]);
      bool take = replaces(v01, v);
      v = take ? v01 : v, at = take ? first + 1 : at;
      take = replaces(v10, v);
      v = take ? v10 : v, at = take ? below : at;
      take = replaces(v11, v);
      best[l] = take ? v11 : v, place[l] = take ? below + 1 : at;
    }
  } else {
    for (int l = 0; l < lanes; l++) best[l] = C(x[l]), place[l] = w.place;
    for (int i = 0; i < w.rows; i++)
      for (int j = 0; j < w.columns; j++) {
        const T* pixel = x + i * w.row_stride + j * w.column_stride;
        const int32_t here = w.place + i * w.place_stride + j;
#pragma omp simd
        for (int l = 0; l < lanes; l++) {
          const C v = C(pixel[l]);
          const bool take = replaces(v, best[l]);
          best[l] = take ? v : best[l], place[l] = take ? here : place[l];
        }
      }
  }
  for (int l = 0; l < lanes; l++) store(y + l, best[l]);
  if (index)
    for (int l = 0; l < lanes; l++) index[l] = Index(place[l]);
}

// Rows are summed by themselves first, so that the error of a sum over a whole image does not grow with its
// pixels.
template <class T, class Lanes>
inline void avg_window(const T* x, const Window& w, Compute<T> divisor, T* y, Lanes lanes) {
  using C = Compute<T>;
  if (w.rows == 2 && w.columns == 2) {
    const T *x01 = x + w.column_stride, *x10 = x + w.row_stride, *x11 = x10 + w.column_stride;
#pragma omp simd
    for (int l = 0; l < lanes; l++) store(y + l, ((C(x[l]) + C(x01[l])) + (C(x10[l]) + C(x11[l]))) / divisor);
    return;
  }
  C sum[kWide] = {};
  for (int i = 0; i < w.rows; i++) {
    C row_sum[kWide] = {};
    for (int j = 0; j < w.columns; j++) {
      const T* pixel = x + i * w.row_stride + j * w.column_stride;
#pragma omp simd
      for (int l = 0; l < lanes; l++) row_sum[l] += C(pixel[l]);
    }
#pragma omp simd
    for (int l = 0; l < lanes; l++) sum[l] += row_sum[l];
  }
#pragma omp simd
  for (int l = 0; l < lanes; l++) store(y + l, sum[l] / divisor);
}

// Calls window(x, w, divisor, y_offset, lanes) for all windows and blocks of channels.
template <class T, class F>
void for_windows(const Tensor& x, const PoolAxis& rows, const PoolAxis& columns, F&& window) {
  const int64_t N = x.shape()[0], W = columns.in, C = x.shape()[3];
  const std::vector<Span> row_spans = input_spans(rows), column_spans = input_spans(columns);
  const T* in = x.data<T>();
  const T* in_end = in + x.numel();
  parallel_for(N * rows.out, row_grain(rows.kernel * W * C), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const int64_t n = row / rows.out, oh = row % rows.out;
      const Span h = row_spans[size_t(oh)];
      for (int64_t ow = 0; ow < columns.out; ow++) {
        const Span w = column_spans[size_t(ow)];
        const T* first = in + ((n * rows.in + h.begin) * W + w.begin) * C;
        Window shape{
            .row_stride = W * C,
            .column_stride = C,
            .rows = int(h.end - h.begin),
            .columns = int(w.end - w.begin),
            .place = int((h.begin - rows.origin(oh)) * columns.kernel + w.begin - columns.origin(ow)),
            .place_stride = int(columns.kernel)};
        const T* last = first + ((shape.rows - 1) * W + shape.columns - 1) * C;
        const bool may_spill = (columns.out - ow - 1) * C >= kNarrow && in_end - last >= C + kNarrow;
        const int64_t at = (row * columns.out + ow) * C;
        const int64_t divisor = rows.divisor(oh) * columns.divisor(ow);
        for_channels(C, may_spill,
                     [&](int64_t c, auto lanes) { window(first + c, shape, divisor, at + c, lanes); });
      }
    }
  });
}

// What the window of an output gives to the input at `place` in it; `at` is the output's offset.
template <class T, class Index>
struct MaxTerm {
  const T* dy;
  const Index* index;
  Compute<T> operator()(int64_t at, int32_t place, Compute<T>) const {
    const Compute<T> value = Compute<T>(dy[at]);  // loaded always: a conditional load is not vectorised
    return int32_t(index[at]) == place ? value : Compute<T>(0);
  }
};
template <class T>
struct AvgTerm {
  const T* dy;
  Compute<T> operator()(int64_t at, int32_t, Compute<T> scale) const { return Compute<T>(dy[at]) * scale; }
};

// Any windows: each input gathers from the windows that contain it, in the order of the outputs, so no two
// threads write the same element.
template <class T, class Term>
void gather_gradient(Tensor& dx, const PoolAxis& rows, const PoolAxis& columns, Term term) {
  using C = Compute<T>;
  const int64_t N = dx.shape()[0], W = columns.in, channels = dx.shape()[3];
  const int64_t outputs = N * rows.out * columns.out * channels;
  const std::vector<Span> row_spans = output_spans(rows), column_spans = output_spans(columns);
  T* out = dx.data<T>();
  parallel_for(N * rows.in, row_grain(W * channels), [&](int64_t begin, int64_t end) {
    std::vector<C> sums(size_t(channels + kNarrow));  // of one pixel
    for (int64_t row = begin; row < end; row++) {
      const int64_t n = row / rows.in, h = row % rows.in;
      for (int64_t w = 0; w < W; w++) {
        std::fill(sums.begin(), sums.end(), C(0));
        for (int64_t oh = row_spans[size_t(h)].begin; oh < row_spans[size_t(h)].end; oh++)
          for (int64_t ow = column_spans[size_t(w)].begin; ow < column_spans[size_t(w)].end; ow++) {
            const int32_t place = int32_t((h - rows.origin(oh)) * columns.kernel + w - columns.origin(ow));
            const C scale = C(1) / C(rows.divisor(oh) * columns.divisor(ow));
            const int64_t at = ((n * rows.out + oh) * columns.out + ow) * channels;
            for_channels(channels, outputs - at >= channels + kNarrow, [&](int64_t c, auto lanes) {
              C* sum = sums.data() + c;
#pragma omp simd
              for (int l = 0; l < lanes; l++) sum[l] += term(at + c + l, place, scale);
            });
          }
        T* pixel = out + (row * W + w) * channels;
        for_channels(channels, (W - w - 1) * channels >= kNarrow, [&](int64_t c, auto lanes) {
          const C* sum = sums.data() + c;
#pragma omp simd
          for (int l = 0; l < lanes; l++) store(pixel + c + l, sum[l]);
        });
      }
    }
  });
}

bool is_tiling(const PoolAxis& axis) {
  return !axis.adaptive && axis.stride == axis.kernel && axis.pad_begin == 0;
}

// Windows side by side: each output writes its own inputs. Inputs behind the last window get 0.
template <class T, class Term>
void tile_gradient(Tensor& dx, const PoolAxis& rows, const PoolAxis& columns, Term term) {
  using C = Compute<T>;
  const int64_t N = dx.shape()[0], H = rows.in, W = columns.in, channels = dx.shape()[3];
  const int64_t outputs = N * rows.out * columns.out * channels;
  T* out = dx.data<T>();
  parallel_for(N * rows.out, row_grain(rows.kernel * W * channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const int64_t n = row / rows.out, oh = row % rows.out;
      T* image = out + n * H * W * channels;
      const int64_t h_begin = rows.begin(oh), h_end = rows.end(oh);
      for (int64_t ow = 0; ow < columns.out; ow++) {
        const int64_t w_begin = columns.begin(ow), w_end = columns.end(ow),
                      at = (row * columns.out + ow) * channels;
        const C scale = C(1) / C(rows.divisor(oh) * columns.divisor(ow));
        const bool may_spill = (W - w_end) * channels >= kNarrow && outputs - at >= channels + kNarrow;
        for (int64_t h = h_begin; h < h_end; h++)
          for (int64_t w = w_begin; w < w_end; w++) {
            const int32_t place = int32_t((h - h_begin) * columns.kernel + w - w_begin);
            T* pixel = image + (h * W + w) * channels;
            for_channels(channels, may_spill, [&](int64_t c, auto lanes) {
#pragma omp simd
              for (int l = 0; l < lanes; l++) store(pixel + c + l, term(at + c + l, place, scale));
            });
          }
      }
      const int64_t w_end = columns.end(columns.out - 1);
      for (int64_t h = h_begin; h < h_end; h++)
        std::fill(image + (h * W + w_end) * channels, image + (h + 1) * W * channels, T(0));
      if (oh + 1 == rows.out) std::fill(image + h_end * W * channels, image + H * W * channels, T(0));
    }
  });
}

template <class T, class Term>
void window_gradient(Tensor& dx, const PoolAxis& rows, const PoolAxis& columns, Term term) {
  if (is_tiling(rows) && is_tiling(columns)) tile_gradient<T>(dx, rows, columns, term);
  else gather_gradient<T>(dx, rows, columns, term);
}

template <class F>
void dispatch_place(const Tensor& index, F&& f) {
  if (!index.defined() || index.dtype() == DType::uint8) f.template operator()<uint8_t>();
  else f.template operator()<int32_t>();
}

}  // namespace

void max_pool2d_forward(const Tensor& x, Tensor& y, Tensor& index, PoolAxis rows, PoolAxis columns, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    T* out = y.data<T>();
    dispatch_place(index, [&]<class Index>() {
      Index* places = index.defined() ? index.data<Index>() : nullptr;
      for_windows<T>(x, rows, columns, [=](const T* first, const Window& w, int64_t, int64_t at, auto lanes) {
        max_window(first, w, out + at, places ? places + at : nullptr, lanes);
      });
    });
  });
}

void max_pool2d_backward(const Tensor& dy, const Tensor& index, Tensor& dx, PoolAxis rows, PoolAxis columns,
                         Stream) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    dispatch_place(index, [&]<class Index>() {
      window_gradient<T>(dx, rows, columns, MaxTerm<T, Index>{dy.data<T>(), index.data<Index>()});
    });
  });
}

void avg_pool2d_forward(const Tensor& x, Tensor& y, PoolAxis rows, PoolAxis columns, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    T* out = y.data<T>();
    for_windows<T>(x, rows, columns,
                   [=](const T* first, const Window& w, int64_t divisor, int64_t at, auto lanes) {
                     avg_window(first, w, Compute<T>(divisor), out + at, lanes);
                   });
  });
}

void avg_pool2d_backward(const Tensor& dy, Tensor& dx, PoolAxis rows, PoolAxis columns, Stream) {
  dispatch_float(dy.dtype(),
                 [&]<class T>() { window_gradient<T>(dx, rows, columns, AvgTerm<T>{dy.data<T>()}); });
}

}  // namespace lockstep::cpu
