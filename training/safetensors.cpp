#include "lockstep/training/safetensors.h"

#include <algorithm>
#include <bit>
#include <set>

#include "lockstep/runtime/autograd.h"
#include "lockstep/training/atomic_file.h"
#include "lockstep/training/input_file.h"
#include "lockstep/training/safetensors_header.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "the data of a safetensors file is little-endian");

namespace {

constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit

// Leaves `file` at the start of the data.
SafetensorsHeader read_header(InputFile& file) {
  uint64_t length = 0, file_bytes = file.size_limit();
  file.read(std::as_writable_bytes(std::span(&length, 1)), "the length of the header");
  LOCKSTEP_CHECK(length <= file_bytes - sizeof length, file.path(), ": header length ", length,
                 ", but the file has ", file_bytes, " bytes");
  LOCKSTEP_CHECK(length <= kMostHeaderBytes, file.path(), ": header length ", length, ", at most ",
                 kMostHeaderBytes, " is permitted");
  std::string text(length, '\0');
  file.read(std::as_writable_bytes(std::span(text)), "the header");
  return parse_safetensors_header(file.path(), text, file_bytes - sizeof length - length);
}

Tensor read_tensor(InputFile& file, const SafetensorsHeader::Entry& entry) {
  Tensor x = empty(entry.shape, entry.dtype);
  if (x.bytes() == 0) return x;
  std::span<std::byte> bytes(static_cast<std::byte*>(x.raw_data()), x.bytes());
  file.read(bytes, entry.name.c_str());
  if (entry.dtype == DType::boolean)
    LOCKSTEP_CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return uint8_t(b) <= 1; }),
                   file.path(), ": \"", entry.name, "\" is BOOL, but has values besides 0 and 1");
  return x;
}

// Row-major and on the CPU, whatever it was.
Tensor writable(const Tensor& x) { return x.to(Device()).contiguous(); }

}  // namespace

StateDict read_safetensors(const std::string& path, Metadata* metadata) {
  InputFile file(path);
  SafetensorsHeader header = read_header(file);
  StateDict tensors(header.entries.size());
  // The data is read from front to back, the result is in the order of the header.
  std::vector<size_t> by_offset(tensors.size());
  for (size_t i = 0; i < tensors.size(); i++) by_offset[i] = i;
  std::stable_sort(by_offset.begin(), by_offset.end(), [&](size_t a, size_t b) {
    const auto &x = header.entries[a], &y = header.entries[b];
    return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);
  });
  for (size_t i : by_offset) tensors[i] = {header.entries[i].name, read_tensor(file, header.entries[i])};
  if (metadata) *metadata = std::move(header.metadata);
  return tensors;
}

Metadata read_safetensors_metadata(const std::string& path) {
  InputFile file(path);
  return read_header(file).metadata;
}

void write_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  NoGradGuard no_grad;
  SafetensorsHeader header{{}, metadata};
  std::set<std::string_view> names{"__metadata__"};
  for (const auto& [name, x] : tensors) {
    LOCKSTEP_CHECK(names.insert(name).second, "[safetensors] the name \"", name,
                   "\" is there twice or reserved");
    LOCKSTEP_CHECK(x.defined() && !x.device().is_meta(), "[safetensors] \"", name,
                   "\" is undefined or on meta: it has no data");
    header.entries.push_back({name, x.dtype(), x.shape()});
  }
  // Wide types first, so that every tensor is aligned to its own type.
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return element_size(tensors[a].second.dtype()) > element_size(tensors[b].second.dtype());
  });
  uint64_t at = 0;
  for (size_t i : order) {
    header.entries[i].begin = at;
    header.entries[i].end = at += tensors[i].second.bytes();
  }
  std::string text = format_safetensors_header(header);
  LOCKSTEP_CHECK(text.size() <= kMostHeaderBytes, "[safetensors] a header of ", text.size(),
                 " bytes, at most ", kMostHeaderBytes, " is permitted");
  write_file_atomically(path, [&](FileWriter& file) {
    uint64_t length = text.size();
    file.write(&length, sizeof length);
    file.write(text);
    for (size_t i : order) {
      Tensor x = writable(tensors[i].second);
      if (x.bytes() > 0) file.write(x.raw_data(), x.bytes());
    }
  });
}

}  // namespace lockstep
