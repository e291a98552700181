// The README shows examples/xor.cpp and what it prints; both must stay true.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/examples/program.h"

namespace lockstep::test {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The first block of the README fenced as ```<language>.
std::string readme_block(const std::string& language) {
  std::string text = read(LOCKSTEP_SOURCE "/README.md"), fence = "```" + language + "\n";
  size_t begin = text.find(fence);
  if (begin == std::string::npos) return "no block " + language;
  begin += fence.size();
  return text.substr(begin, text.find("```", begin) - begin);
}

TEST(Readme, ShowsTheExampleAsItIs) {
  std::string source = read(LOCKSTEP_SOURCE "/examples/xor.cpp");
  EXPECT_EQ(readme_block("cpp"), source.substr(source.find('\n') + 1));
}

// To the last digit but one: processors differ in how they round.
TEST(Readme, ShowsWhatItPrints) {
  Result result = run({LOCKSTEP_XOR_PROGRAM});
  ASSERT_EQ(result.code, 0) << result.error;
  std::istringstream shown(readme_block("text")), printed(result.out);
  int lines = 0;
  for (std::string a, b; std::getline(shown, a); lines++) {
    ASSERT_TRUE(std::getline(printed, b)) << "the program prints less than the README";
    int step_a = 0, step_b = 0;
    double loss_a = 0, loss_b = 0;
    ASSERT_EQ(std::sscanf(a.c_str(), "step %d loss %lf", &step_a, &loss_a), 2) << a;
    ASSERT_EQ(std::sscanf(b.c_str(), "step %d loss %lf", &step_b, &loss_b), 2) << b;
    EXPECT_EQ(step_a, step_b);
    EXPECT_NEAR(loss_a, loss_b, 0.002);
  }
  EXPECT_EQ(lines, 3);
}

}  // namespace
}  // namespace lockstep::test
