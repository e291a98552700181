#include "lockstep/training/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "lockstep/training/safetensors_header.h"
#include "tests/training/test_files.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::read_bytes;
using testing::TempFolder;

std::string raw_bytes(const Tensor& x) {
  Tensor c = x.contiguous();
  return std::string(static_cast<const char*>(c.raw_data()), c.bytes());
}

// One tensor of each type, and shapes at the edges.
StateDict samples() {
  StateDict tensors;
  tensors.emplace_back("bool", from_vector<uint8_t>({1, 0, 1}, {3}).to(DType::boolean));
  tensors.emplace_back("bytes", from_vector<uint8_t>({0, 127, 255}, {3, 1}));
  for (DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
    tensors.emplace_back(concat("numbers.", name(dtype)),
                         from_vector<float>({-1.5f, 0, 3.25f, 1e4f, -0.0f, 7}, {2, 3}).to(dtype));
  tensors.emplace_back("large", from_vector<int64_t>({INT64_MIN, -1, INT64_MAX}, {1, 3}));
  tensors.emplace_back("small", from_vector<int32_t>({INT32_MIN, INT32_MAX}, {2}));
  tensors.emplace_back("scalar", scalar<float>(42));
  tensors.emplace_back("empty", zeros({3, 0, 2}));
  tensors.emplace_back("a \"name\" with \\ and \n and \xc3\xa9",
                       from_vector<float>({std::numeric_limits<float>::infinity()}));
  return tensors;
}

void expect_equal(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_EQ(a[i].second.dtype(), b[i].second.dtype());
    EXPECT_EQ(a[i].second.shape(), b[i].second.shape());
    EXPECT_EQ(raw_bytes(a[i].second), raw_bytes(b[i].second)) << a[i].first;
  }
}

TEST(Safetensors, round_trip) {
  TempFolder folder;
  std::string path = folder.file("weights.safetensors");
  Metadata metadata{{"format", "pt"}, {"quote \" and \\", "line\nbreak"}}, found;
  write_safetensors(path, samples(), metadata);
  expect_equal(read_safetensors(path, &found), samples());
  EXPECT_EQ(found, metadata);
  EXPECT_EQ(read_safetensors_metadata(path), metadata);
  write_safetensors(path, {});
  EXPECT_TRUE(read_safetensors(path, &found).empty());
  EXPECT_TRUE(found.empty());
}

TEST(Safetensors, tensors_are_aligned) {
  TempFolder folder;
  std::string path = folder.file("weights.safetensors");
  write_safetensors(path, samples());
  std::string bytes = read_bytes(path);
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  SafetensorsHeader header =
      parse_safetensors_header(path, std::string_view(bytes).substr(8, length), bytes.size() - 8 - length);
  for (const auto& entry : header.entries)
    EXPECT_EQ(entry.begin % element_size(entry.dtype), 0u) << entry.name;
}

TEST(Safetensors, strides_and_graphs_do_not_matter) {
  TempFolder folder;
  std::string path = folder.file("weights.safetensors");
  Tensor x = from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  x.set_requires_grad();
  write_safetensors(path, {{"transposed", x.transpose(0, 1)}, {"part", x.slice(1, 1, 3)}, {"twice", x}});
  StateDict read = read_safetensors(path);
  EXPECT_EQ(read[0].second.to_vector<int>(), (std::vector<int>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(read[1].second.to_vector<int>(), (std::vector<int>{2, 3, 5, 6}));
  EXPECT_FALSE(read[2].second.requires_grad());
}

TEST(Safetensors, what_cannot_be_written_is_refused_and_the_old_file_stays) {
  TempFolder folder;
  std::string path = folder.write("weights.safetensors", "old");
  Tensor x = zeros({2});
  expect_error([&] { write_safetensors(path, {{"w", x}, {"w", x}}); }, {"\"w\"", "twice"});
  expect_error([&] { write_safetensors(path, {{"__metadata__", x}}); }, {"__metadata__"});
  expect_error([&] { write_safetensors(path, {{"w", Tensor()}}); }, {"\"w\"", "undefined"});
  expect_error(
      [&] {
        write_safetensors(path, {{"w", empty({2}, DType::float32, "meta")}});
      },
      {"\"w\"", "meta"});
  expect_error([&] { write_safetensors(path, {{"w\xff", x}}); }, {"UTF-8"});
  expect_error([&] { write_safetensors(path, {{"w", x}}, {{"key", "\xc3"}}); }, {"UTF-8"});
  expect_error([&] { write_safetensors(folder.file("no/w"), {{"w", x}}); }, {"no/w", "No such file"});
  EXPECT_EQ(read_bytes(path), "old");
}

std::string python() {
  const char* given = std::getenv("LOCKSTEP_PYTHON");
  return given && *given ? given : "python3";
}

TEST(Safetensors, agrees_with_the_python_package) {
  if (std::system((python() + " -c 'import numpy, safetensors.numpy' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << python() << " has no numpy and safetensors (LOCKSTEP_PYTHON names another interpreter)";
  TempFolder folder;
  std::string ours = folder.file("ours.safetensors"), theirs = folder.file("theirs.safetensors");
  StateDict tensors = samples();
  write_safetensors(ours, tensors, {{"author", "us"}});
  std::string expected;  // name, type, shape and bytes as the package must see them
  for (auto& [name, x] : tensors) {
    if (name.starts_with("a ")) continue;
    expected += concat(name, " ", x.shape(), " ");
    for (unsigned char byte : raw_bytes(x)) expected += concat(int(byte), ",");
    expected += "\n";
  }
  folder.write("expected", expected);
  std::string script = folder.write("check.py", R"(
import sys, numpy as np, safetensors, safetensors.numpy
ours, theirs, expected = sys.argv[1:]
types = {'bool': 'BOOL', 'bytes': 'U8', 'numbers.float64': 'F64', 'numbers.float32': 'F32', 'numbers.float16': 'F16',
         'numbers.bfloat16': 'BF16', 'large': 'I64', 'small': 'I32', 'scalar': 'F32', 'empty': 'F32'}
seen = {name: info for name, info in safetensors.deserialize(open(ours, 'rb').read())}
assert 'a "name" with \\ and \n and \u00e9' in seen, seen.keys()
for line in open(expected):
    name, rest = line.split(' ', 1)
    info = seen[name]
    assert info['dtype'] == types[name], (name, info['dtype'])
    values = ''.join(f'{byte},' for byte in bytes(info['data']))
    assert rest == f"{list(info['shape'])} {values}\n", (rest, info)
assert len(seen) == len(types) + 1
with safetensors.safe_open(ours, framework='np') as file:
    assert file.metadata() == {'author': 'us'}
    assert file.get_tensor('numbers.float32').tolist() == [[-1.5, 0, 3.25], [1e4, 0, 7]]
safetensors.numpy.save_file({
    'f64': np.array([[1.5, -2.5]]), 'f32': np.arange(6, dtype=np.float32).reshape(2, 3), 'f16': np.array([0.5], np.float16),
    'i64': np.array([-1, 2**62]), 'i32': np.array([-7], np.int32), 'u8': np.array([[255]], np.uint8),
    'bool': np.array([True, False]), 'scalar': np.array(3.0), 'empty': np.zeros((0, 4), np.float32)}, theirs, {'author': 'them'})
)");
  std::string command = python() + " " + script + " " + ours + " " + theirs + " " + folder.file("expected");
  ASSERT_EQ(std::system(command.c_str()), 0);

  Metadata metadata;
  std::map<std::string, Tensor> read;
  for (auto& [name, x] : read_safetensors(theirs, &metadata)) read[name] = x;
  EXPECT_EQ(metadata, (Metadata{{"author", "them"}}));
  ASSERT_EQ(read.size(), 9u);
  auto expect = [&](const char* name, DType dtype, const Shape& shape, const std::vector<double>& values) {
    EXPECT_EQ(read[name].dtype(), dtype) << name;
    EXPECT_EQ(read[name].shape(), shape) << name;
    EXPECT_EQ(read[name].to_vector<double>(), values) << name;
  };
  expect("f64", DType::float64, {1, 2}, {1.5, -2.5});
  expect("f32", DType::float32, {2, 3}, {0, 1, 2, 3, 4, 5});
  expect("f16", DType::float16, {1}, {0.5});
  expect("i64", DType::int64, {2}, {-1, 0x1p62});
  expect("i32", DType::int32, {1}, {-7});
  expect("u8", DType::uint8, {1, 1}, {255});
  expect("bool", DType::boolean, {2}, {1, 0});
  expect("scalar", DType::float64, {}, {3});
  expect("empty", DType::float32, {0, 4}, {});
}

}  // namespace
}  // namespace lockstep
