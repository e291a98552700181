#include <gtest/gtest.h>

#include <chrono>

#include "tests/examples/program.h"

namespace lockstep::test {
namespace {

// Static destruction: no crash, no message, no waiting, and the right code.
class C70_static_destruction : public testing::TestWithParam<const char*> {};

TEST_P(C70_static_destruction, ends_clean) {
  auto start = std::chrono::steady_clock::now();
  Result result = run({LOCKSTEP_EXIT_PROGRAM, GetParam()});
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.error, "");
  EXPECT_LT(elapsed.count(), 20);  // "no hang"; loose, since tests share the machine and sanitizers are slow
}

INSTANTIATE_TEST_SUITE_P(Cases, C70_static_destruction,
                         testing::Values("return", "exit_in_thread", "exit_in_parallel_region"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::test
