#include "lockstep/runtime/tensor.h"

#include <cstring>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

Tensor make_tensor(std::shared_ptr<Storage> storage, const Shape& shape, DType dtype) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::move(storage);
  impl->shape = shape;
  impl->strides = contiguous_strides(shape);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

// A handle to what `tensor` is now, history included, that stays so when `tensor` is rebased by an in-place
// change.
Tensor with_current_history(const Tensor& tensor) {
  return Tensor(std::make_shared<TensorImpl>(*tensor.handle()));
}

// Is an in-place `op` on `self` to be recorded? Throws if it would have to be but cannot.
bool record_in_place(const char* op, const Tensor& self, const Tensor* source = nullptr) {
  for (int i = 0; i < self.ndim(); i++)
    LOCKSTEP_CHECK(self.shape()[i] <= 1 || self.strides()[i] != 0, "[", op,
                   "] in-place change of a broadcast view: axis ", i, " of shape ", self.shape(),
                   " has one element in memory for all; clone it first");
  if (!grad_enabled() || !(self.requires_grad() || (source && source->requires_grad()))) return false;
  LOCKSTEP_CHECK(!(self.is_leaf() && self.requires_grad()), "[", op,
                 "] in-place change of a leaf that requires a gradient; do it under NoGradGuard");
  LOCKSTEP_CHECK(
      !self.handle()->is_view, "[", op,
      "] in-place change of a view cannot be recorded; use an op that returns a new tensor, or NoGradGuard");
  return true;
}

// Gives `self` the history "op applied to `inputs`".
void rebase(const char* op, Tensor& self, std::initializer_list<Tensor> inputs,
            std::function<Tensors(const Tensors&)> backward) {
  self.handle()->autograd = nullptr;
  make_node(op, std::span(inputs.begin(), inputs.size()), {&self, 1})->backward = std::move(backward);
}

Tensor scaled(const Tensor& x, double factor) {
  if (factor == 1) return x;
  Tensor y = x.clone();
  LOCKSTEP_DISPATCH(current_stream(y.device()), scale, y, factor);
  return y;
}

}  // namespace

void check_same_device(const char* op, std::initializer_list<const Tensor*> tensors) {
  const Tensor* first = nullptr;
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    if (!first) first = tensor;
    LOCKSTEP_CHECK(tensor->device() == first->device(), "[", op,
                   "] tensors on different devices: ", first->device(), " and ", tensor->device());
  }
}

Tensor Tensor::wrap(void* data, const Shape& shape, DType dtype, std::shared_ptr<void> owner) {
  LOCKSTEP_CHECK(data || shape.numel() == 0, "[wrap] got null for shape ", shape,
                 ", expected memory of the caller");
  auto storage = std::make_shared<Storage>();
  storage->data = data;
  storage->bytes = size_t(shape.numel()) * element_size(dtype);
  storage->owner = std::move(owner);
  return make_tensor(std::move(storage), shape, dtype);
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = ndim() - 1; i >= 0; i--) {
    if (shape()[i] == 0) return true;
    if (shape()[i] != 1 && strides()[i] != expected) return false;
    expected *= shape()[i];
  }
  return true;
}

void* Tensor::raw_data() const {
  const TensorImpl& self = impl();
  LOCKSTEP_CHECK(!device().is_meta(), "a meta tensor of shape ", shape(), " has no values");
  return static_cast<char*>(self.storage->data) + self.offset * int64_t(element_size(self.dtype));
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  NoGradGuard no_grad;
  LOCKSTEP_CHECK(!device().is_meta(), "a meta tensor of shape ", shape(), " has no values");
  Tensor values = to(Device("cpu")).to(dtype_of<T>).contiguous();
  const T* begin = values.data<T>();
  return std::vector<T>(begin, begin + values.numel());
}

template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, Device device) {
  LOCKSTEP_CHECK(int64_t(values.size()) == shape.numel(), "[from_span] got ", values.size(),
                 " values, expected ", shape.numel(), " for shape ", shape);
  Tensor result = empty(shape, dtype_of<T>);
  std::copy(values.begin(), values.end(), result.data<T>());
  return result.to(device);
}

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device) {
  if constexpr (std::is_same_v<T, bool>) {  // vector<bool> has no data()
    std::unique_ptr<bool[]> copy(new bool[values.size()]);
    std::copy(values.begin(), values.end(), copy.get());
    return from_span(std::span<const bool>(copy.get(), values.size()), shape, device);
  } else {
    return from_span(std::span<const T>(values), shape, device);
  }
}

#define LOCKSTEP_INSTANTIATE(T)                                           \
  template std::vector<T> Tensor::to_vector<T>() const;                   \
  template Tensor from_span<T>(std::span<const T>, const Shape&, Device); \
  template Tensor from_vector<T>(const std::vector<T>&, const Shape&, Device);
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(float16)
LOCKSTEP_INSTANTIATE(bfloat16)
LOCKSTEP_INSTANTIATE(int64_t)
LOCKSTEP_INSTANTIATE(int32_t)
LOCKSTEP_INSTANTIATE(uint8_t)
LOCKSTEP_INSTANTIATE(bool)
#undef LOCKSTEP_INSTANTIATE

Tensor empty(const Shape& shape, DType dtype, Device device) {
  int64_t bytes;
  LOCKSTEP_CHECK(!__builtin_mul_overflow(shape.numel(), int64_t(element_size(dtype)), &bytes),
                 "[empty] shape ", shape, " of ", dtype, " has more than 2^63 bytes");
  auto storage = std::make_shared<Storage>();
  storage->memory = Memory(device, size_t(bytes));
  storage->data = storage->memory.data();
  storage->bytes = size_t(bytes);
  storage->device = device;
  return make_tensor(std::move(storage), shape, dtype);
}

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  LOCKSTEP_DISPATCH(current_stream(device), fill, result, value);
  return result;
}

Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }
Tensor empty_like(const Tensor& x) { return empty(x.shape(), x.dtype(), x.device()); }
Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), x.dtype(), x.device()); }

Tensor arange(int64_t count, DType dtype, Device device) {
  LOCKSTEP_CHECK(count >= 0, "[arange] got ", count, ", expected at least 0");
  if (device.is_meta()) return empty({count}, dtype, device);
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i++) values[size_t(i)] = i;
  return from_vector(values).to(dtype).to(device);
}

Tensor Tensor::clone() const {
  Tensor y = empty_like(*this);
  LOCKSTEP_DISPATCH(current_stream(device()), copy, *this, y);
  return record("clone", y, {*this}, [](const Tensor& dy) -> Tensors { return {dy}; });
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  Tensor y = empty(shape(), dtype, device());
  LOCKSTEP_DISPATCH(current_stream(device()), copy, *this, y);
  if (!is_floating(dtype)) return y;
  return record("cast", y, {*this},
                [from = this->dtype()](const Tensor& dy) -> Tensors { return {dy.to(from)}; });
}

Tensor Tensor::to(Device device) const {
  if (device == this->device()) return *this;
  LOCKSTEP_CHECK(!this->device().is_meta(), "[to] a meta tensor of shape ", shape(),
                 " has no values to copy to ", device);
  Tensor y = empty(shape(), dtype(), device);
  return record("to", y, {*this},
                [from = this->device()](const Tensor& dy) -> Tensors { return {dy.to(from)}; });
}

Tensor& Tensor::fill_(double value) {
  record_in_place("fill_", *this);
  LOCKSTEP_DISPATCH(current_stream(device()), fill, *this, value);
  bump_version();
  if (!is_leaf() && !handle()->is_view && grad_enabled())
    handle()->autograd = nullptr;  // a constant from here on
  return *this;
}

Tensor& Tensor::copy_(const Tensor& source) {
  bool recorded = record_in_place("copy_", *this, &source);
  LOCKSTEP_CHECK(broadcast_shapes("copy_", shape(), source.shape()) == shape(), "[copy_] source ",
                 source.shape(), " does not broadcast to ", shape());
  Tensor local = source.to(device());
  LOCKSTEP_DISPATCH(current_stream(device()), copy, local, *this);
  bump_version();
  if (recorded)
    rebase("copy_", *this, {source},
           [from = source.dtype()](const Tensors& dy) -> Tensors { return {dy[0].to(from)}; });
  return *this;
}

Tensor& Tensor::add_(const Tensor& other, double alpha) {
  bool recorded = record_in_place("add_", *this, &other);
  check_same_device("add_", {this, &other});
  LOCKSTEP_CHECK(broadcast_shapes("add_", shape(), other.shape()) == shape(), "[add_] ", other.shape(),
                 " does not broadcast to ", shape());
  Tensor converted = other.to(dtype());
  Tensor before = recorded ? with_current_history(*this) : Tensor();
  LOCKSTEP_DISPATCH(current_stream(device()), accumulate, converted, alpha, *this);
  bump_version();
  if (recorded)
    rebase("add_", *this, {before, converted}, [alpha](const Tensors& dy) -> Tensors {
      return {dy[0], scaled(dy[0], alpha)};
    });
  return *this;
}

Tensor& Tensor::mul_(double factor) {
  bool recorded = record_in_place("mul_", *this);
  Tensor before = recorded ? with_current_history(*this) : Tensor();
  LOCKSTEP_DISPATCH(current_stream(device()), scale, *this, factor);
  bump_version();
  if (recorded)
    rebase("mul_", *this, {before},
           [factor](const Tensors& dy) -> Tensors { return {scaled(dy[0], factor)}; });
  return *this;
}

void Tensor::set_data(const Tensor& source) {
  TensorImpl& self = impl();
  const TensorImpl& other = source.impl();
  LOCKSTEP_CHECK(is_leaf(), "[set_data] the tensor is the result of ", self.autograd->node->op,
                 ", expected a leaf");
  self.storage = other.storage;
  self.offset = other.offset;
  self.shape = other.shape;
  self.strides = other.strides;
  self.dtype = other.dtype;
  self.is_view = false;
}

}  // namespace lockstep
