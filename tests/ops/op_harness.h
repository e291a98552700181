// One row per op drives all its checks. A test of an op is a row and a call:
//
//   TEST(OpUnary, Exp) {
//     check_op({.name = "exp",
//               .inputs = {{.shape = {3, 5}, .low = -2, .high = 2}},
//               .op = [](const Tensors& x) { return exp(x[0]); },
//               .reference = [](const Tensors& x) {
//                 std::vector<double> y = x[0].to_vector<double>();
//                 for (double& v : y) v = std::exp(v);
//                 return from_vector(y, x[0].shape());
//               },
//               .bad = {{"expected a floating-point dtype", [] { exp(arange(3)); }}},
//               .empty_shapes = {{0, 5}}});
//   }
//
// check_op runs: every float dtype against the double reference, and its gradients against those in double;
// gradcheck in double; inputs and dy with other strides; meta; bad input, after which the op still works;
// guard words around inputs and dy; the same bits for 1, 2 and 7 threads; empty tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep::test {

enum class Role { floating, index, boolean };

struct OpInput {
  Shape shape = {};
  double low = -1, high = 1;        // values are drawn uniformly from [low, high); an index is rounded down
  Role role = Role::floating;       // dtype: the one under test, int64, or bool
  bool differentiable = true;       // for floating inputs: is a gradient wanted?
  std::vector<double> values = {};  // used instead of drawn ones where given, row-major
};

struct BadCall {
  std::string message_part;
  std::function<void()> call;
};

struct OpRow {
  std::string name = {};
  std::vector<OpInput> inputs = {};
  // Must give the same result each time it is called: an op that draws numbers seeds its generator in here.
  std::function<Tensor(const Tensors&)> op = {};
  // Naive loops. Gets contiguous copies, floating ones as float64 (index and boolean inputs keep int64 and
  // bool), and returns float64. x.to_vector<double>() reads any of them.
  std::function<Tensor(const Tensors&)> reference = {};
  int64_t length = 1;  // terms summed per element of the result or of a gradient, the larger
  double slack = 1;    // factor on the tolerance, for a stated reason
  std::vector<BadCall> bad = {};
  std::vector<Shape> empty_shapes =
      {};  // shapes of the inputs for a call without elements; none: not supported
  std::vector<DType> dtypes = {DType::float64, DType::float32, DType::float16, DType::bfloat16};
  bool same_dtype = true;  // the result has the dtype under test
  bool gradcheck = true;   // false where the function is not smooth at the inputs
};

void check_op(const OpRow& row);

// Allowed |got - want| / (|want| + rms(want)) for a result stored in `dtype` of which each element sums
// `length` terms: a few roundings of the stored type, and of the computing type an error that grows with the
// square root of the length.
double tolerance(DType dtype, int64_t length);

// Same shape, and each element within the relative `tolerance` of above; non-finite values must agree
// exactly.
void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what);
void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what);

// `count` values uniform in [low, high), the same for the same seed on every machine.
std::vector<double> draw(uint64_t seed, int64_t count, double low = -1, double high = 1);
// A drawn tensor: draw() as float64, converted.
Tensor drawn(uint64_t seed, const Shape& shape, double low = -1, double high = 1,
             DType dtype = DType::float64);

// The same values under other strides: axes stored in reverse order, two elements apart.
Tensor with_other_strides(const Tensor& x);

// Expects `call` to throw an Error whose message starts with "[" and contains `message_part`.
void expect_error(const std::string& message_part, const std::function<void()>& call);

}  // namespace lockstep::test
