// Case C57: files that are damaged, or made to harm.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "lockstep/training/safetensors.h"
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

#ifndef __SANITIZE_ADDRESS__  // under it a failed allocation ends the process
TEST(Planted, a_large_allocation_is_caught) {
  MemoryLimit limit;
  std::unique_ptr<std::byte[]> block;
  EXPECT_THROW(block = std::make_unique<std::byte[]>(256 << 20), std::bad_alloc);
  EXPECT_FALSE(block);
}
#endif

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
  write_safetensors(folder.file("whole"),
                    {{"w", ones({2, 3})}, {"empty", ones({3, 0})}, {"half", ones({5}, DType::float16)}},
                    {{"key", "value"}});
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

}  // namespace
}  // namespace lockstep
