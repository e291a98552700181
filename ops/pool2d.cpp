#include "lockstep/ops/pool2d.h"

#include "lockstep/runtime/autograd.h"

namespace lockstep {
namespace {

void check_images(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[", op, "] expected a floating-point dtype, got ", x.dtype());
  LOCKSTEP_CHECK(x.ndim() == 4 && x.shape()[1] > 0 && x.shape()[2] > 0, "[", op, "] got shape ", x.shape(),
                 ", expected [N, H, W, C] with at least one pixel");
}

PoolAxis fixed_axis(const char* op, const char* name, const Tensor& x, int axis, const Pool2dOptions& options,
                    int64_t pad_begin, int64_t pad_end) {
  const int64_t in = x.shape()[axis], kernel = options.kernel[size_t(axis - 1)];
  const int64_t stride = options.stride[size_t(axis - 1)] == 0 ? kernel : options.stride[size_t(axis - 1)];
  LOCKSTEP_CHECK(kernel > 0 && stride > 0, "[", op, "] got kernel ", kernel, " and stride ", stride,
                 " along the ", name, ", expected at least 1");
  LOCKSTEP_CHECK(pad_begin >= 0 && pad_begin <= kernel / 2 && pad_end >= 0 && pad_end <= kernel / 2, "[", op,
                 "] got padding ", pad_begin, " and ", pad_end, " along the ", name, ", expected 0 to ",
                 kernel / 2, ", half of the kernel ", kernel);
  const int64_t room = in + pad_begin + pad_end - kernel;  // how far the first window can move
  LOCKSTEP_CHECK(room >= 0, "[", op, "] kernel ", kernel, " is larger than the ", in + pad_begin + pad_end,
                 " padded ", name, " of shape ", x.shape());
  int64_t out = room / stride + 1;
  if (options.ceil_mode && room % stride != 0 && out * stride < in + pad_begin) out++;
  return {.in = in,
          .out = out,
          .kernel = kernel,
          .stride = stride,
          .pad_begin = pad_begin,
          .pad_end = pad_end,
          .count_pad = options.count_include_pad};
}

struct Axes {
  PoolAxis rows, columns;
};

Axes fixed_axes(const char* op, const Tensor& x, const Pool2dOptions& options) {
  check_images(op, x);
  const PoolPadding& pad = options.padding;
  return {fixed_axis(op, "rows", x, 1, options, pad.top, pad.bottom),
          fixed_axis(op, "columns", x, 2, options, pad.left, pad.right)};
}

PoolAxis adaptive_axis(int64_t in, int64_t out) {
  PoolAxis axis{.in = in, .out = out, .adaptive = true};
  for (int64_t o = 0; o < out; o++) axis.kernel = std::max(axis.kernel, axis.end(o) - axis.begin(o));
  return axis;
}

Axes adaptive_axes(const char* op, const Tensor& x, std::array<int64_t, 2> size) {
  check_images(op, x);
  LOCKSTEP_CHECK(size[0] > 0 && size[1] > 0, "[", op, "] got output size ", size[0], " x ", size[1],
                 ", expected at least 1 x 1");
  return {adaptive_axis(x.shape()[1], size[0]), adaptive_axis(x.shape()[2], size[1])};
}

Tensor max_pool(const char* op, const Tensor& input, const Axes& axes) {
  Tensor x = input.contiguous();
  const Shape in = x.shape(), out{in[0], axes.rows.out, axes.columns.out, in[3]};
  Tensor y = empty(out, x.dtype(), x.device()), index;
  if (needs_grad({x}))
    index =
        empty(out, axes.rows.kernel * axes.columns.kernel <= 256 ? DType::uint8 : DType::int32, x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), max_pool2d_forward, x, y, index, axes.rows, axes.columns);
  return record(op, y, {x}, [index, axes, in](const Tensor& grad) -> Tensors {
    Tensor dy = grad.contiguous(), dx = empty(in, dy.dtype(), dy.device());
    LOCKSTEP_DISPATCH(current_stream(dy.device()), max_pool2d_backward, dy, index, dx, axes.rows,
                      axes.columns);
    return {dx};
  });
}

Tensor avg_pool(const char* op, const Tensor& input, const Axes& axes) {
  Tensor x = input.contiguous();
  const Shape in = x.shape();
  Tensor y = empty({in[0], axes.rows.out, axes.columns.out, in[3]}, x.dtype(), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), avg_pool2d_forward, x, y, axes.rows, axes.columns);
  return record(op, y, {x}, [axes, in](const Tensor& grad) -> Tensors {
    Tensor dy = grad.contiguous(), dx = empty(in, dy.dtype(), dy.device());
    LOCKSTEP_DISPATCH(current_stream(dy.device()), avg_pool2d_backward, dy, dx, axes.rows, axes.columns);
    return {dx};
  });
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return max_pool("max_pool2d", x, fixed_axes("max_pool2d", x, options));
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return avg_pool("avg_pool2d", x, fixed_axes("avg_pool2d", x, options));
}

Tensor adaptive_max_pool2d(const Tensor& x, std::array<int64_t, 2> size) {
  return max_pool("adaptive_max_pool2d", x, adaptive_axes("adaptive_max_pool2d", x, size));
}

Tensor adaptive_avg_pool2d(const Tensor& x, std::array<int64_t, 2> size) {
  return avg_pool("adaptive_avg_pool2d", x, adaptive_axes("adaptive_avg_pool2d", x, size));
}

Tensor global_avg_pool2d(const Tensor& x) {
  return avg_pool("global_avg_pool2d", x, adaptive_axes("global_avg_pool2d", x, {1, 1}))
      .reshape({x.shape()[0], x.shape()[3]});
}

}  // namespace lockstep
