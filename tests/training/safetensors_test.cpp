#include "lockstep/training/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/training/safetensors_header.h"
#include "tests/training/test_files.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::read_bytes;
using testing::TempFolder;

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

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

// Each must be refused; `field` is what the message must name.
struct Probe {
  std::string file, field;
};

std::string tensor_json(const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

std::vector<Probe> hostile_files() {
  const std::string data(16, '\1');
  auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return file_of("{" + tensor_json("w", dtype, shape, offsets) + "}", data);
  };
  auto two = [&](const std::string& a, const std::string& b) {
    return file_of("{" + a + "," + b + "}", data);
  };
  std::string whole = tensor_json("w", "F32", "[4]", "[0,16]");
  std::string first = tensor_json("a", "F32", "[2]", "[0,8]");
  std::vector<Probe> probes = {
      {"", "length of the header"},
      {"1234567", "length of the header"},
      {little_endian(UINT64_MAX) + "{}", "header length 18446744073709551615"},
      {little_endian(UINT64_MAX - 7) + "{}", "header length 18446744073709551608"},
      {little_endian(3) + "{}", "header length 3"},
      {little_endian(uint64_t(1) << 40) + "{}", "header length"},
      {little_endian(0), "header"},
      {file_of("", ""), "header"},
      {file_of("[]", ""), "header"},
      {file_of("42", ""), "header"},
      {file_of("{", ""), "header is no JSON"},
      {file_of("{}x", ""), "header is no JSON"},
      {file_of("{\"\xff\":1}", ""), "header is no JSON"},
      {file_of("{}", "x"), "1 bytes"},
      {one("F32", "[4]", "[16,0]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[-16,0]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,-16]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[16,32]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,17]"), "data_offsets of \"w\""},
      {one("F32", "[5]", "[0,20]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,18446744073709551615]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[18446744073709551600,18446744073709551615]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,18446744073709551616]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,16.0]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,\"16\"]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "[0,16,16]"), "data_offsets of \"w\""},
      {one("F32", "[4]", "16"), "data_offsets of \"w\""},
      {one("F32", "[3]", "[0,16]"), "data_offsets of \"w\""},
      {one("F32", "[3]", "[0,12]"), "16 bytes"},
      {one("F32", "[3]", "[4,16]"), "data_offsets of \"w\""},
      {one("F32", "[4294967296,4294967296]", "[0,0]"), "shape of \"w\""},
      {one("F32", "[4294967296,4294967296,0]", "[0,0]"), "shape of \"w\""},
      {one("F32", "[0,4294967296,4294967296]", "[0,0]"), "shape of \"w\""},
      {one("F32", "[4194305,4194305,211106198978564]", "[0,16]"), "shape of \"w\""},
      {one("U8", "[4194305,4194305,211106198978564]", "[0,4]"), "shape of \"w\""},
      {one("U8", "[9223372036854775807]", "[0,16]"), "data_offsets of \"w\""},
      {one("F32", "[2305843009213693953]", "[0,4]"), "shape of \"w\""},
      {one("U8", "[9223372036854775808]", "[0,16]"), "shape of \"w\""},
      {one("U8", "[99999999999999999999]", "[0,16]"), "shape of \"w\""},
      {one("F32", "[-4]", "[0,16]"), "shape of \"w\""},
      {one("F32", "[-2,-2]", "[0,16]"), "shape of \"w\""},
      {one("F32", "[4.0]", "[0,16]"), "shape of \"w\""},
      {one("F32", "[1e0,4]", "[0,16]"), "shape of \"w\""},
      {one("F32", "[null]", "[0,16]"), "shape of \"w\""},
      {one("F32", "[[4]]", "[0,16]"), "shape of \"w\""},
      {one("F32", "4", "[0,16]"), "shape of \"w\""},
      {one("F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), "shape of \"w\""},
      {one("F31", "[4]", "[0,16]"), "dtype of \"w\""},
      {one("", "[4]", "[0,16]"), "dtype of \"w\""},
      {one("f32", "[4]", "[0,16]"), "dtype of \"w\""},
      {one("F32\\u0000", "[4]", "[0,16]"), "dtype of \"w\""},
      {file_of("{\"w\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,16]}}", data), "dtype of \"w\""},
      {file_of("{\"w\":{\"shape\":[4],\"data_offsets\":[0,16]}}", data), "dtype is missing"},
      {file_of("{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", data), "shape is missing"},
      {file_of("{\"w\":{\"dtype\":\"F32\",\"shape\":[4]}}", data), "data_offsets is missing"},
      {file_of("{\"w\":{\"shape\":[4],\"shape\":[4],\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", data),
       "shape is there twice"},
      {file_of("{\"w\":{\"shape\":[4],\"strides\":[1],\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", data),
       "\"strides\""},
      {file_of("{\"w\":{}}", data), "\"w\""},
      {file_of("{\"w\":[]}", data), "\"w\""},
      {file_of("{\"w\":\"F32\"}", data), "\"w\""},
      {file_of("{\"w\":null}", data), "\"w\""},
      {two(whole, whole), "\"w\" is there twice"},
      {two(whole, tensor_json("\\u0077", "F32", "[4]", "[0,16]")), "\"w\" is there twice"},
      {two(whole, tensor_json("v", "F32", "[4]", "[0,16]")), "overlap"},
      {two(first, tensor_json("b", "F32", "[3]", "[4,16]")), "data_offsets of \"b\""},
      {two(first, tensor_json("b", "F32", "[1]", "[12,16]")), "data_offsets of \"b\""},
      {file_of("{\"__metadata__\":{\"k\":1}," + whole + "}", data), "__metadata__"},
      {file_of("{\"__metadata__\":{\"k\":{\"a\":\"b\"}}," + whole + "}", data), "__metadata__"},
      {file_of("{\"__metadata__\":[]," + whole + "}", data), "__metadata__"},
      {file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}," + whole + "}", data), "\"k\" twice"},
      {file_of("{\"__metadata__\":{},\"__metadata__\":{}," + whole + "}", data), "__metadata__"},
      {one("BOOL", "[16]", "[0,16]").replace(one("BOOL", "[16]", "[0,16]").size() - 3, 1, "\2"),
       "\"w\" is BOOL"},
  };
  for (int depth : {4, 100, 1000000}) {  // deep nesting, in every place
    std::string lists(size_t(depth), '['), objects;
    for (int i = 0; i < std::min(depth, 100000); i++) objects += "{\"a\":";
    probes.push_back({file_of(lists, ""), "header"});
    probes.push_back({file_of(objects, ""), "\"a\""});
    probes.push_back({file_of("{\"w\":{\"shape\":" + lists, ""), "shape of \"w\""});
    probes.push_back({file_of("{\"w\":{\"dtype\":" + objects, ""), "dtype of \"w\""});
    probes.push_back({file_of("{\"__metadata__\":{\"k\":" + lists, ""), "__metadata__ \"k\""});
  }
  return probes;
}

// The process may take 64 MB more than it has; past that an allocation fails.
class MemoryLimit {
 public:
  MemoryLimit() {
    getrlimit(RLIMIT_AS, &before_);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit{pages * size_t(getpagesize()) + (64 << 20), before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

TEST(Cases, C57_hostile_files) {
  TempFolder folder(TempFolder::Where::memory);
  std::vector<Probe> probes = hostile_files();
  MemoryLimit limit;
  for (const Probe& probe : probes) {
    SCOPED_TRACE(probe.file.substr(0, 120));
    std::string path = folder.write("probe", probe.file);
    expect_error([&] { read_safetensors(path); }, {path, probe.field});
  }
  expect_error([&] { read_safetensors(folder.path()); }, {folder.path(), "not a regular file"});
  expect_error([&] { read_safetensors(folder.file("nowhere")); }, {"nowhere", "No such file"});
}

TEST(Cases, C57_file_cut_at_every_byte) {
  TempFolder folder(TempFolder::Where::memory);
  write_safetensors(folder.file("whole"), samples(), {{"key", "value"}});
  std::string bytes = read_bytes(folder.file("whole"));
  MemoryLimit limit;
  for (size_t length = 0; length < bytes.size(); length++) {
    std::string path = folder.write("cut", bytes.substr(0, length));
    expect_error([&] { read_safetensors(path); }, {path});
  }
}

TEST(Cases, C57_damaged_bytes_do_no_harm) {
  // What is read is either refused, or a set of tensors that lies within the file.
  TempFolder folder(TempFolder::Where::memory);
  write_safetensors(folder.file("whole"), {{"w", ones({2, 3})}, {"b", ones({5}).to(DType::boolean)}},
                    {{"key", "value"}});
  std::string bytes = read_bytes(folder.file("whole"));
  int refused = 0;
  MemoryLimit limit;
  for (size_t at = 0; at < bytes.size(); at++)
    for (char byte : {'\0', '\xff', '"', '9', '-', '[', '}', char(bytes[at] ^ 1), char(bytes[at] ^ 0x80)}) {
      std::string damaged = bytes;
      damaged[at] = byte;
      std::string path = folder.write("damaged", damaged);
      try {
        size_t total = 0;
        for (auto& [name, x] : read_safetensors(path)) total += x.bytes();
        EXPECT_LE(total, bytes.size());
      } catch (const Error& error) {
        refused++;
        EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      }
    }
  EXPECT_GT(refused, 1000);
}

// A reader as one writes it at first: header fields are used as sizes without a check.
bool naive_reader_accepts(const std::string& bytes) {
  if (bytes.size() < 8) return false;
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  if (8 + length > bytes.size()) return false;  // wraps
  nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length), nullptr, false);
  if (!header.is_object()) return false;
  for (auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry["shape"].is_array() || !entry.contains("data_offsets") || entry["data_offsets"].size() != 2)
      return false;
    uint64_t bytes_of_tensor = entry["dtype"] == "F32" ? 4 : 1;
    for (auto& size : entry["shape"])
      if (size.is_number()) bytes_of_tensor *= size.get<uint64_t>();  // wraps
    if (!entry["data_offsets"][0].is_number() || !entry["data_offsets"][1].is_number()) return false;
    uint64_t begin = entry["data_offsets"][0].get<uint64_t>(), end = entry["data_offsets"][1].get<uint64_t>();
    if (end - begin != bytes_of_tensor || 8 + length + end > bytes.size()) return false;
  }
  return true;
}

TEST(Planted, a_naive_safetensors_reader_is_caught) {
  // The probes tell a checking reader from one that does not check: of each kind of fault some get past the
  // naive one.
  std::map<std::string, int> accepted;
  for (const Probe& probe : hostile_files())
    if (probe.file.size() < 1000 && naive_reader_accepts(probe.file)) accepted[probe.field]++;
  EXPECT_GE(accepted["shape of \"w\""], 4) << "products that wrap";
  EXPECT_GE(accepted["header length 18446744073709551608"] + accepted["header length 18446744073709551615"],
            0);
  EXPECT_GE(accepted["\"w\" is there twice"], 2);
  EXPECT_GE(accepted["overlap"], 1);
  EXPECT_GE(accepted["data_offsets of \"b\""], 2) << "overlap and hole";
  EXPECT_GE(accepted["1 bytes"] + accepted["16 bytes"], 2) << "data that belongs to no tensor";
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
