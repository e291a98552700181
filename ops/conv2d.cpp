#include "lockstep/ops/conv2d.h"

#include <climits>

#include "lockstep/ops/conv2d_plans.h"
#include "lockstep/ops/gemm.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

// Size of the output along one axis of the image.
int64_t output_size(const char* axis, int64_t size, int64_t kernel, int64_t stride, int64_t before,
                    int64_t after, int64_t dilation, const Shape& x, const Shape& w) {
  LOCKSTEP_CHECK(stride >= 1 && stride <= INT_MAX, "[conv2d] stride ", stride, ", expected at least 1");
  LOCKSTEP_CHECK(dilation >= 1 && dilation <= INT_MAX, "[conv2d] dilation ", dilation,
                 ", expected at least 1");
  LOCKSTEP_CHECK(before >= 0 && after >= 0 && before <= INT_MAX && after <= INT_MAX, "[conv2d] padding ",
                 before, " and ", after, " along the ", axis, ", expected at least 0");
  LOCKSTEP_CHECK(size <= INT_MAX && kernel <= INT_MAX, "[conv2d] input ", x, " or weight ", w,
                 " is too large");
  const int64_t reach = dilation * (kernel - 1) + 1, padded = size + before + after;
  LOCKSTEP_CHECK(reach <= padded, "[conv2d] kernel of ", reach, " along the ", axis,
                 " (dilation included) is larger than the padded input of ", padded, ", for input ", x,
                 " and weight ", w);
  return (padded - reach) / stride + 1;
}

cpu::ConvGeometry make_geometry(const Shape& x, const Shape& w, const Conv2dOptions& o) {
  const auto& [top, bottom, left, right] = o.padding;
  return {.N = x[0],
          .H = x[1],
          .W = x[2],
          .C = x[3],
          .K = w[0],
          .R = w[1],
          .S = w[2],
          .P = output_size("height", x[1], w[1], o.stride[0], top, bottom, o.dilation[0], x, w),
          .Q = output_size("width", x[2], w[2], o.stride[1], left, right, o.dilation[1], x, w),
          .stride_h = o.stride[0],
          .stride_w = o.stride[1],
          .top = top,
          .bottom = bottom,
          .left = left,
          .right = right,
          .dilation_h = o.dilation[0],
          .dilation_w = o.dilation[1],
          .groups = o.groups};
}

cpu::ConvGeometry check_conv(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[conv2d] expected a floating-point dtype, got ", x.dtype());
  LOCKSTEP_CHECK(x.ndim() == 4, "[conv2d] input of shape ", x.shape(), ", expected [N, H, W, C]");
  LOCKSTEP_CHECK(w.ndim() == 4, "[conv2d] weight of shape ", w.shape(), ", expected [K, R, S, C / groups]");
  LOCKSTEP_CHECK(x.dtype() == w.dtype(), "[conv2d] input is ", x.dtype(), ", weight ", w.dtype(),
                 ", expected one dtype");
  check_same_device("conv2d", {&x, &w});
  for (int64_t size : w.shape())
    LOCKSTEP_CHECK(size >= 1, "[conv2d] weight of shape ", w.shape(), ", expected sizes of at least 1");
  const int64_t channels = x.shape()[3], filters = w.shape()[0];
  LOCKSTEP_CHECK(o.groups >= 1, "[conv2d] groups ", o.groups, ", expected at least 1");
  LOCKSTEP_CHECK(channels % o.groups == 0 && filters % o.groups == 0, "[conv2d] groups ", o.groups,
                 " do not divide ", channels, " input channels and ", filters, " filters, for input ",
                 x.shape(), " and weight ", w.shape());
  LOCKSTEP_CHECK(w.shape()[3] == channels / o.groups, "[conv2d] weight of shape ", w.shape(), " has ",
                 w.shape()[3], " channels, expected ", channels / o.groups, " for input ", x.shape(), " and ",
                 o.groups, " groups");
  if (bias.defined()) {
    LOCKSTEP_CHECK(bias.ndim() == 1 && bias.shape()[0] == filters, "[conv2d] bias of shape ", bias.shape(),
                   ", expected [", filters, "] for weight ", w.shape());
    LOCKSTEP_CHECK(bias.dtype() == w.dtype(), "[conv2d] bias is ", bias.dtype(), ", weight ", w.dtype(),
                   ", expected one dtype");
    check_same_device("conv2d", {&w, &bias});
  }
  return make_geometry(x.shape(), w.shape(), o);
}

Tensor convolve(const char* op, const Tensor& input, const Tensor& weight, const Tensor& bias,
                const Conv2dOptions& options, bool relu) {
  const cpu::ConvGeometry g = check_conv(input, weight, bias, options);
  const bool needs_x = input.requires_grad(), needs_w = weight.requires_grad();
  const bool has_bias = bias.defined(), needs_bias = has_bias && bias.requires_grad();
  Tensor x, w, b;  // row-major, without history: the node below holds it
  {
    NoGradGuard no_grad;
    x = input.contiguous();
    w = weight.contiguous();
    if (has_bias) b = bias.contiguous();
  }
  Tensor y = empty({g.N, g.P, g.Q, g.K}, x.dtype(), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), conv2d_forward, x, w, b, options, relu, y);
  Tensors inputs = {input, weight};
  if (has_bias) inputs.push_back(bias);
  return record(op, y, inputs,
                [x = needs_w ? Saved(x) : Saved(), w = needs_x ? Saved(w) : Saved(),
                 y = relu ? Saved(y) : Saved(), x_shape = x.shape(), w_shape = w.shape(), options, needs_w,
                 has_bias, needs_bias](const Tensor& dy_any) -> Tensors {
                  Tensor dy = dy_any.contiguous(), dx, dw, db;
                  const Stream stream = current_stream(dy.device());
                  if (y.defined()) {
                    Tensor masked = empty_like(dy);
                    LOCKSTEP_DISPATCH(stream, conv2d_relu_mask, y.get(), dy, masked);
                    dy = masked;
                  }
                  if (w.defined()) {
                    dx = empty(x_shape, dy.dtype(), dy.device());
                    LOCKSTEP_DISPATCH(stream, conv2d_backward_input, dy, w.get(), options, dx);
                  }
                  if (needs_w) dw = empty(w_shape, dy.dtype(), dy.device());
                  if (needs_bias) db = empty({w_shape[0]}, dy.dtype(), dy.device());
                  if (needs_w || needs_bias)
                    LOCKSTEP_DISPATCH(stream, conv2d_backward_weight, needs_w ? x.get() : Tensor(), dy,
                                      options, dw, db);
                  return has_bias ? Tensors{dx, dw, db} : Tensors{dx, dw};
                });
}

}  // namespace

Conv2dOptions same_padding(std::array<int64_t, 2> kernel, std::array<int64_t, 2> dilation, int64_t groups) {
  Conv2dOptions options{.dilation = dilation, .groups = groups};
  for (int axis = 0; axis < 2; axis++) {
    LOCKSTEP_CHECK(kernel[axis] >= 1 && dilation[axis] >= 1, "[same_padding] kernel ", kernel[axis],
                   ", dilation ", dilation[axis], ", expected at least 1");
    const int64_t total = dilation[axis] * (kernel[axis] - 1);
    options.padding[2 * axis] = total / 2;
    options.padding[2 * axis + 1] = total - total / 2;
  }
  return options;
}

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options) {
  return convolve("conv2d", x, w, bias, options, false);
}

Tensor conv2d_relu(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options) {
  return convolve("conv2d_relu", x, w, bias, options, true);
}

namespace cpu {
namespace {

// double has one plan.
template <class T>
ConvPlan plan_for(ConvDirection direction, const ConvGeometry& g, bool bias = false) {
  return std::is_same_v<T, float> ? choose_plan(direction, g, bias) : ConvPlan::im2col;
}

}  // namespace

void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options,
                    bool relu, Tensor& y, Stream s) {
  if (is_16_bit(y)) {
    Tensor wide = empty(y.shape(), DType::float32);
    conv2d_forward(widen(x, s), widen(w, s), widen(bias, s), options, relu, wide, s);
    return copy(wide, y, s);
  }
  if (y.numel() == 0) return;
  const ConvGeometry g = make_geometry(x.shape(), w.shape(), options);
  dispatch_wide(y.dtype(), [&]<class T>() {
    conv_forward(plan_for<T>(ConvDirection::forward, g, bias.defined()), g, x.data<T>(), w.data<T>(),
                 data_or_null<T>(bias), relu, y.data<T>());
  });
}

void conv2d_backward_input(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, Tensor& dx,
                           Stream s) {
  if (is_16_bit(dx)) {
    Tensor wide = empty(dx.shape(), DType::float32);
    conv2d_backward_input(widen(dy, s), widen(w, s), options, wide, s);
    return copy(wide, dx, s);
  }
  if (dx.numel() == 0) return;
  const ConvGeometry g = make_geometry(dx.shape(), w.shape(), options);
  dispatch_wide(dx.dtype(), [&]<class T>() {
    conv_backward_input(plan_for<T>(ConvDirection::backward_input, g), g, dy.data<T>(), w.data<T>(),
                        dx.data<T>());
  });
}

void conv2d_backward_weight(const Tensor& x, const Tensor& dy, const Conv2dOptions& options, Tensor& dw,
                            Tensor& dbias, Stream s) {
  if (is_16_bit(dy)) {
    Tensor wide_dw = dw.defined() ? empty(dw.shape()) : Tensor();
    Tensor wide_dbias = dbias.defined() ? empty(dbias.shape()) : Tensor();
    conv2d_backward_weight(widen(x, s), widen(dy, s), options, wide_dw, wide_dbias, s);
    if (dw.defined()) copy(wide_dw, dw, s);
    if (dbias.defined()) copy(wide_dbias, dbias, s);
    return;
  }
  dispatch_wide(dy.dtype(), [&]<class T>() {
    if (!dw.defined())
      return column_sums(dy.data<T>(), dy.numel() / dy.shape()[3], dy.shape()[3], dbias.data<T>());
    const ConvGeometry g = make_geometry(x.shape(), dw.shape(), options);
    if (g.N == 0) {
      fill(dw, 0, s);
      if (dbias.defined()) fill(dbias, 0, s);
      return;
    }
    conv_backward_weight(plan_for<T>(ConvDirection::backward_weight, g), g, x.data<T>(), dy.data<T>(),
                         dw.data<T>(), data_or_null<T>(dbias));
  });
}

void conv2d_relu_mask(const Tensor& y, const Tensor& dy, Tensor& dx, Stream) {
  dispatch_float(dx.dtype(), [&]<class T>() {
    map<T, T, T>(
        dx, [](Compute<T> y, Compute<T> dy) { return y > 0 ? dy : Compute<T>(0); }, y, dy);
  });
}

}  // namespace cpu
}  // namespace lockstep
