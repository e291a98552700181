// Tensor: a shared handle to {storage, offset, shape, strides, dtype, device}. Copying a Tensor copies the
// handle.
//
// Views (reshape, transpose, slice, ...) share the storage and its version counter, which every in-place
// change raises: autograd uses it to catch a saved tensor that was changed. Views are differentiable. A
// handle may be used from one thread at a time; different handles to one storage may be read from several.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/shape.h"

namespace lockstep {

class Tensor;
using Tensors = std::vector<Tensor>;
struct AutogradMeta;  // autograd.h

struct Storage {
  Memory memory;
  void* data = nullptr;  // null on meta and for 0 bytes
  size_t bytes = 0;
  Device device;
  std::shared_ptr<void> owner;  // set when the memory is not ours: Tensor::wrap
  std::atomic<uint64_t> version{0};
};

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;  // in elements
  Shape shape;
  Strides strides;
  DType dtype = DType::float32;
  bool is_view = false;
  uint64_t view_version = 0;  // of the storage when the view was made; Note [Stale views] in tensor_views.cpp
  std::shared_ptr<AutogradMeta> autograd;
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  // A tensor over memory of the caller, row-major, at least numel * element_size bytes, kept alive by
  // `owner`.
  static Tensor wrap(void* data, const Shape& shape, DType dtype, std::shared_ptr<void> owner = nullptr);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  int ndim() const { return impl().shape.size(); }
  int64_t size(int64_t axis) const { return shape()[normalize_axis("size", axis, shape())]; }
  int64_t numel() const { return shape().numel(); }
  size_t bytes() const { return size_t(numel()) * element_size(dtype()); }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device; }
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const { return impl().storage; }
  int64_t offset() const { return impl().offset; }

  // First element. T must be the tensor's dtype; throws on meta.
  template <class T>
  T* data() const {
    LOCKSTEP_CHECK(dtype_of<T> == dtype(), "[data] the tensor is ", dtype(), ", asked as ", dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  void* raw_data() const;

  // Values, converted to T, in row-major order. Throws on meta.
  template <class T>
  std::vector<T> to_vector() const;
  // The one element of a tensor with one element.
  template <class T = double>
  T item() const {
    LOCKSTEP_CHECK(numel() == 1, "[item] shape ", shape(), " has ", numel(), " elements, expected 1");
    return to_vector<T>()[0];
  }
  std::string to_string() const;  // values (long axes shortened), shape, dtype, device

  // Views: same storage. reshape copies where the strides do not permit a view.
  Tensor reshape(const Shape& shape) const;  // one size may be -1: the rest
  Tensor flatten(int64_t first_axis = 0) const;
  Tensor transpose(int64_t axis_a, int64_t axis_b) const;
  Tensor permute(const Shape& axes) const;
  Tensor slice(int64_t axis, int64_t begin, int64_t end,
               int64_t step = 1) const;              // clamped as in Python; step > 0
  Tensor select(int64_t axis, int64_t index) const;  // drops the axis
  Tensor expand(const Shape& shape) const;           // size-1 axes and new leading ones
  Tensor squeeze(int64_t axis) const;
  Tensor unsqueeze(int64_t axis) const;

  // Copies. contiguous() and to() return *this where there is nothing to do. All are differentiable.
  Tensor clone() const;
  Tensor contiguous() const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;

  // In place. A change of a tensor that needs a gradient is recorded; of a leaf or of a view that needs one,
  // refused.
  Tensor& fill_(double value);
  Tensor& zero_() { return fill_(0); }
  Tensor& copy_(const Tensor& source);                  // broadcast and converted
  Tensor& add_(const Tensor& other, double alpha = 1);  // += alpha * other
  Tensor& mul_(double factor);
  // Replaces storage, shape and dtype behind this handle and all its copies (Module::to, loading); not
  // recorded.
  void set_data(const Tensor& source);

  // Autograd; see autograd.h.
  bool requires_grad() const;
  Tensor& set_requires_grad(bool value = true);  // leaves of floating dtype only
  bool is_leaf() const;                          // not the result of a recorded operation
  Tensor grad() const;                           // undefined until backward has run
  void set_grad(const Tensor& grad) const;       // undefined: forgets it
  // Same values, same storage and version counter, no history.
  Tensor detach() const;
  // Runs backward from this tensor; `grad` is dL/d(this), by default 1 for a tensor of one element.
  void backward(const Tensor& grad = {}, bool retain_graph = false) const;

  uint64_t version() const { return impl().storage->version.load(std::memory_order_relaxed); }
  void bump_version() const { impl().storage->version.fetch_add(1, std::memory_order_relaxed); }

  const std::shared_ptr<TensorImpl>& handle() const { return impl_; }
  bool same_as(const Tensor& other) const { return impl_ == other.impl_; }

 private:
  TensorImpl& impl() const {
    LOCKSTEP_CHECK(impl_, "an undefined tensor was used");
    return *impl_;
  }
  std::shared_ptr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

Tensor empty(const Shape& shape, DType dtype = DType::float32, Device device = {});
Tensor full(const Shape& shape, double value, DType dtype = DType::float32, Device device = {});
Tensor zeros(const Shape& shape, DType dtype = DType::float32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = DType::float32, Device device = {});
Tensor arange(int64_t count, DType dtype = DType::int64, Device device = {});  // 0, 1, ..., count - 1
Tensor empty_like(const Tensor& x);  // row-major, whatever the strides of x
Tensor zeros_like(const Tensor& x);

// A copy of `values` in row-major order; throws unless their count is the shape's.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, Device device = {});
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device = {});
template <class T>
Tensor from_vector(const std::vector<T>& values) {
  return from_vector(values, {int64_t(values.size())});
}
template <class T>
Tensor scalar(T value, Device device = {}) {
  return from_span(std::span<const T>(&value, 1), {}, device);
}

// One device for all of an op's tensors; throws "[op] ..." naming both otherwise.
void check_same_device(const char* op, std::initializer_list<const Tensor*> tensors);

}  // namespace lockstep
