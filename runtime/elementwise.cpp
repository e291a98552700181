#include "lockstep/runtime/elementwise.h"

namespace lockstep::cpu {

Loop merge_axes(const Shape& shape, const Strides& strides) {
  Loop loop;
  for (int i = 0; i < shape.size(); i++) {
    if (shape[i] == 1) continue;
    const int last = loop.shape.size() - 1;
    if (last >= 0 && loop.strides[last] == strides[i] * shape[i]) {
      loop.shape[last] *= shape[i];
      loop.strides[last] = strides[i];
    } else {
      loop.shape.push_back(shape[i]);
      loop.strides.push_back(strides[i]);
    }
  }
  if (loop.shape.empty()) {
    loop.shape.push_back(1);
    loop.strides.push_back(1);
  }
  return loop;
}

Loop make_loop(const Tensor& x, const Shape& shape) {
  const int lead = shape.size() - x.ndim();
  LOCKSTEP_ASSERT(lead >= 0, "operand ", x.shape(), " for loop ", shape);
  Strides strides(shape.size(), 0);
  for (int i = lead; i < shape.size(); i++) {
    const int64_t size = x.shape()[i - lead];
    LOCKSTEP_ASSERT(size == shape[i] || size == 1, "operand ", x.shape(), " for loop ", shape);
    if (size != 1) strides[i] = x.strides()[i - lead];
  }
  return merge_axes(shape, strides);
}

template <class T>
void load(const T* __restrict x, int64_t n, Compute<T>* __restrict y) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, float16>)  // the compiler does not vectorise the scalar conversion
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; i++) y[i] = Compute<T>(x[i]);
}

namespace {

template <class T>
void store_row(const Compute<T>* __restrict x, int64_t n, T* __restrict y) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, float16>)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) y[i] = T(x[i]);
}

}  // namespace

template <class T>
void gather(const Loop& loop, const T* x, int64_t begin, int64_t n, Compute<T>* block) {
  const int64_t stride = loop.strides.back();
  for_rows(loop, begin, begin + n, [&](int64_t offset, int64_t length) {
    const T* row = x + offset;
    if (stride == 1) load(row, length, block);
    else if (stride == 0) std::fill(block, block + length, Compute<T>(*row));
    else
      for (int64_t i = 0; i < length; i++) block[i] = Compute<T>(row[i * stride]);
    block += length;
  });
}

template <class T>
void scatter(const Loop& loop, const Compute<T>* block, int64_t begin, int64_t n, T* y) {
  const int64_t stride = loop.strides.back();
  for_rows(loop, begin, begin + n, [&](int64_t offset, int64_t length) {
    T* row = y + offset;
    if (stride == 1) store_row(block, length, row);
    else
      for (int64_t i = 0; i < length; i++) row[i * stride] = T(block[i]);
    block += length;
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                               \
  template void load(const T*, int64_t, Compute<T>*);                         \
  template void gather(const Loop&, const T*, int64_t, int64_t, Compute<T>*); \
  template void scatter(const Loop&, const Compute<T>*, int64_t, int64_t, T*);
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(float16)
LOCKSTEP_INSTANTIATE(bfloat16)
LOCKSTEP_INSTANTIATE(int64_t)
LOCKSTEP_INSTANTIATE(int32_t)
LOCKSTEP_INSTANTIATE(uint8_t)
LOCKSTEP_INSTANTIATE(bool)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::cpu
