// A short list of int64 kept inline: shapes, strides and axes allocate nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

#include "lockstep/runtime/check.h"

namespace lockstep {

class Shape {
 public:
  static constexpr int kMaxDims = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> values) : Shape(std::span(values.begin(), values.size())) {}
  Shape(std::span<const int64_t> values) {
    for (int64_t value : values) push_back(value);
  }
  Shape(int size, int64_t value) {
    for (int i = 0; i < size; i++) push_back(value);
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t back() const { return values_[size_ - 1]; }
  int64_t* begin() { return values_; }
  int64_t* end() { return values_ + size_; }
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + size_; }
  operator std::span<const int64_t>() const { return {values_, size_t(size_)}; }

  void push_back(int64_t value) {
    LOCKSTEP_CHECK(size_ < kMaxDims, "a tensor has at most ", kMaxDims, " axes");
    values_[size_++] = value;
  }
  void insert(int at, int64_t value) {
    push_back(value);
    std::rotate(values_ + at, values_ + size_ - 1, values_ + size_);
  }
  void erase(int at) {
    std::copy(values_ + at + 1, values_ + size_, values_ + at);
    size_--;
  }

  // Product of the sizes; 1 for a scalar. Throws if a size is negative or the product does not fit in int64.
  int64_t numel() const;

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape);  // "[64, 28, 28, 1]"

 private:
  int64_t values_[kMaxDims] = {};
  int size_ = 0;
};

using Strides = Shape;  // in elements

Strides contiguous_strides(const Shape& shape);

// The shape to which both broadcast by the rules of NumPy; throws "[op] ..." naming both shapes.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

// Turns axis in [-ndim, ndim) into [0, ndim); throws "[op] axis ... for shape ...".
int normalize_axis(const char* op, int64_t axis, const Shape& shape);

}  // namespace lockstep
