// The header of a safetensors file, as text and checked.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "lockstep/training/safetensors.h"

namespace lockstep {

struct SafetensorsHeader {
  struct Entry {
    std::string name;
    DType dtype = DType::float32;
    Shape shape;
    uint64_t begin = 0, end = 0;  // bytes, from the start of the data
  };
  std::deque<Entry> entries;  // in the order of the text
  Metadata metadata;
};

// `data_bytes` is what the file has behind the header; the entries cover it exactly, without holes or
// overlap. Throws Error "path: reason", naming the field.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           uint64_t data_bytes);

// Padded with spaces so that the data behind the 8 bytes and the header is aligned to 8.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace lockstep
