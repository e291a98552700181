// Views: the same storage seen with another offset, shape and strides.
//
// Note [Stale views]. A view is recorded against the tensor as it was. If that tensor is changed in place
// afterwards, the view shows the new values but its history is the old one, so its gradient would be silently
// wrong: make_node refuses a differentiable view whose storage has changed since the view was made.
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {
namespace {

Tensor make_view(const Tensor& x, int64_t offset, const Shape& shape, const Strides& strides) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = x.storage();
  impl->offset = offset;
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = x.dtype();
  impl->is_view = true;
  impl->view_version = x.version();
  return Tensor(std::move(impl));
}

// Strides with which x can be seen as `shape`, of equally many elements; false if a copy is needed. Each run
// of axes of x that is contiguous in itself is matched against the axes of `shape` with the same product.
bool view_strides(const Tensor& x, const Shape& shape, Strides& strides) {
  if (x.is_contiguous()) {
    strides = contiguous_strides(shape);
    return true;
  }
  strides = Strides(shape.size(), 1);
  int to = shape.size() - 1;
  int64_t run = 1, base = 0;
  for (int from = x.ndim() - 1; from >= 0; from--) {
    if (run == 1) base = x.strides()[from];
    run *= x.shape()[from];
    bool ends = from == 0 || (x.shape()[from - 1] != 1 && x.strides()[from - 1] != run * base);
    if (!ends) continue;
    int64_t product = 1;
    while (to >= 0 && (product < run || shape[to] == 1)) {
      strides[to] = product * base;
      product *= shape[to--];
    }
    if (product != run) return false;
    run = 1;
  }
  return to == -1;
}

}  // namespace

Tensor Tensor::detach() const {
  auto impl = std::make_shared<TensorImpl>(this->impl());
  impl->autograd = nullptr;
  impl->is_view = false;
  return Tensor(std::move(impl));
}

Tensor Tensor::reshape(const Shape& requested) const {
  Shape target = requested;
  int wildcard = -1;
  int64_t known = 1;
  for (int i = 0; i < target.size(); i++) {
    LOCKSTEP_CHECK(target[i] >= -1, "[reshape] size ", target[i], " in ", requested);
    if (target[i] == -1) {
      LOCKSTEP_CHECK(wildcard == -1, "[reshape] more than one -1 in ", requested);
      wildcard = i;
    } else {
      known *= target[i];
    }
  }
  if (wildcard >= 0 && known > 0) target[wildcard] = numel() / known;
  LOCKSTEP_CHECK((wildcard < 0 || known > 0) && target.numel() == numel(), "[reshape] ", shape(), " to ",
                 requested, ": got ", numel(), " elements");
  Strides strides;
  if (!view_strides(*this, target, strides)) return contiguous().reshape(target);
  return record("reshape", make_view(*this, offset(), target, strides), {*this},
                [shape = shape()](const Tensor& dy) -> Tensors { return {dy.reshape(shape)}; });
}

Tensor Tensor::flatten(int64_t first_axis) const {
  if (ndim() == 0) return reshape({1});
  int first = normalize_axis("flatten", first_axis, shape());
  Shape target(std::span(shape().begin(), size_t(first)));
  target.push_back(Shape(std::span(shape().begin() + first, size_t(ndim() - first))).numel());
  return reshape(target);
}

Tensor Tensor::permute(const Shape& axes) const {
  LOCKSTEP_CHECK(axes.size() == ndim(), "[permute] got ", axes.size(), " axes for shape ", shape());
  Shape new_shape, inverse(ndim(), -1);
  Strides new_strides;
  for (int i = 0; i < ndim(); i++) {
    int axis = normalize_axis("permute", axes[i], shape());
    LOCKSTEP_CHECK(inverse[axis] == -1, "[permute] axis ", axis, " twice in ", axes);
    inverse[axis] = i;
    new_shape.push_back(shape()[axis]);
    new_strides.push_back(strides()[axis]);
  }
  return record("permute", make_view(*this, offset(), new_shape, new_strides), {*this},
                [inverse](const Tensor& dy) -> Tensors { return {dy.permute(inverse)}; });
}

Tensor Tensor::transpose(int64_t axis_a, int64_t axis_b) const {
  int a = normalize_axis("transpose", axis_a, shape()), b = normalize_axis("transpose", axis_b, shape());
  Shape axes;
  for (int i = 0; i < ndim(); i++) axes.push_back(i == a ? b : i == b ? a : i);
  return permute(axes);
}

Tensor Tensor::slice(int64_t axis, int64_t begin, int64_t end, int64_t step) const {
  int at = normalize_axis("slice", axis, shape());
  LOCKSTEP_CHECK(step > 0, "[slice] step ", step, ", expected at least 1");
  int64_t size = shape()[at];
  auto clamped = [size](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  begin = clamped(begin);
  end = std::max(begin, clamped(end));
  Shape new_shape = shape();
  Strides new_strides = strides();
  new_shape[at] = (end - begin + step - 1) / step;
  new_strides[at] *= step;
  return record("slice", make_view(*this, offset() + begin * strides()[at], new_shape, new_strides), {*this},
                [shape = shape(), at, begin, end, step](const Tensor& dy) -> Tensors {
                  Tensor dx = zeros(shape, dy.dtype(), dy.device());
                  dx.slice(at, begin, end, step).copy_(dy);
                  return {dx};
                });
}

Tensor Tensor::select(int64_t axis, int64_t index) const {
  int at = normalize_axis("select", axis, shape());
  int64_t size = shape()[at];
  LOCKSTEP_CHECK(-size <= index && index < size, "[select] index ", index, " on axis ", axis, " of shape ",
                 shape());
  if (index < 0) index += size;
  return slice(at, index, index + 1).squeeze(at);
}

Tensor Tensor::expand(const Shape& target) const {
  int lead = target.size() - ndim();
  LOCKSTEP_CHECK(lead >= 0, "[expand] ", shape(), " to ", target);
  Strides new_strides(target.size(), 0);
  for (int i = 0; i < ndim(); i++) {
    LOCKSTEP_CHECK(shape()[i] == target[lead + i] || shape()[i] == 1, "[expand] ", shape(), " to ", target);
    new_strides[lead + i] = shape()[i] == target[lead + i] ? strides()[i] : 0;
  }
  target.numel();  // refuses negative sizes
  return record("expand", make_view(*this, offset(), target, new_strides), {*this},
                [](const Tensor& dy) -> Tensors { return {dy}; });  // the engine sums the broadcast away
}

Tensor Tensor::squeeze(int64_t axis) const {
  int at = normalize_axis("squeeze", axis, shape());
  LOCKSTEP_CHECK(shape()[at] == 1, "[squeeze] axis ", axis, " of shape ", shape(), " has size ", shape()[at],
                 ", expected 1");
  Shape new_shape = shape();
  Strides new_strides = strides();
  new_shape.erase(at);
  new_strides.erase(at);
  return record("squeeze", make_view(*this, offset(), new_shape, new_strides), {*this},
                [at](const Tensor& dy) -> Tensors { return {dy.unsqueeze(at)}; });
}

Tensor Tensor::unsqueeze(int64_t axis) const {
  LOCKSTEP_CHECK(-ndim() - 1 <= axis && axis <= ndim(), "[unsqueeze] axis ", axis, " for shape ", shape());
  int at = int(axis < 0 ? axis + ndim() + 1 : axis);
  Shape new_shape = shape();
  Strides new_strides = strides();
  new_strides.insert(at, at < ndim() ? strides()[at] * shape()[at] : 1);
  new_shape.insert(at, 1);
  return record("unsqueeze", make_view(*this, offset(), new_shape, new_strides), {*this},
                [at](const Tensor& dy) -> Tensors { return {dy.squeeze(at)}; });
}

}  // namespace lockstep
