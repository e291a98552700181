// The gradient of every view and copy by gradcheck, and of views of views.
#include <gtest/gtest.h>

#include "lockstep/runtime/gradcheck.h"
#include "tests/ops/op_harness.h"
#include "tests/runtime/toy_ops.h"

namespace lockstep {
namespace {

using namespace test;

struct ViewCase {
  const char* name;
  Shape shape;
  std::function<Tensor(const Tensor&)> view;
};

std::ostream& operator<<(std::ostream& out, const ViewCase& c) { return out << c.name; }

class ViewGradient : public testing::TestWithParam<ViewCase> {};

TEST_P(ViewGradient, AgreesWithDifferences) {
  const ViewCase& c = GetParam();
  // The squares make the gradient depend on where each element goes.
  auto f = [&](const Tensors& x) {
    Tensor y = c.view(x[0]);
    return product(y, y);
  };
  Tensor x = drawn(1, c.shape).set_requires_grad();
  GradcheckResult result = gradcheck(f, {x});
  EXPECT_TRUE(result.ok) << result.message;
  // Also as the view of something that is itself recorded.
  result = gradcheck([&](const Tensors& x) { return f({scaled(x[0], 3)}); }, {x});
  EXPECT_TRUE(result.ok) << result.message;
}

INSTANTIATE_TEST_SUITE_P(
    Views, ViewGradient,
    testing::Values(ViewCase{"reshape",
                             {2, 6},
                             [](const Tensor& x) {
                               return x.reshape({3, -1});
                             }},
                    ViewCase{"reshape_that_copies",
                             {2, 6},
                             [](const Tensor& x) {
                               return x.transpose(0, 1).reshape({4, 3});
                             }},
                    ViewCase{"flatten", {2, 3, 2}, [](const Tensor& x) { return x.flatten(1); }},
                    ViewCase{"transpose", {2, 3}, [](const Tensor& x) { return x.transpose(0, -1); }},
                    ViewCase{"permute",
                             {2, 3, 4},
                             [](const Tensor& x) {
                               return x.permute({2, 0, 1});
                             }},
                    ViewCase{"slice", {5, 3}, [](const Tensor& x) { return x.slice(0, 1, 3); }},
                    ViewCase{"slice_with_step", {7, 2}, [](const Tensor& x) { return x.slice(0, 1, 7, 3); }},
                    ViewCase{"select", {4, 3}, [](const Tensor& x) { return x.select(1, -2); }},
                    ViewCase{"expand",
                             {2, 1},
                             [](const Tensor& x) {
                               return x.expand({3, 2, 4});
                             }},
                    ViewCase{"squeeze", {2, 1, 3}, [](const Tensor& x) { return x.squeeze(1); }},
                    ViewCase{"unsqueeze", {2, 3}, [](const Tensor& x) { return x.unsqueeze(-1); }},
                    ViewCase{"clone", {2, 3}, [](const Tensor& x) { return x.clone(); }},
                    ViewCase{
                        "contiguous", {2, 3}, [](const Tensor& x) { return x.transpose(0, 1).contiguous(); }},
                    ViewCase{"overlapping_uses",
                             {5},
                             [](const Tensor& x) { return plus(x.slice(0, 0, 3), x.slice(0, 2, 5)); }},
                    ViewCase{"chain",
                             {4, 6},
                             [](const Tensor& x) {
                               return x.slice(1, 0, 6, 2)
                                   .transpose(0, 1)
                                   .unsqueeze(0)
                                   .expand({2, 3, 4})
                                   .permute({1, 2, 0})
                                   .select(0, 1);
                             }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep
