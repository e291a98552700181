// safetensors: named tensors in a file (github.com/huggingface/safetensors), the format PyTorch people
// exchange weights in.
//
//   8 bytes   length of the header, little-endian
//   header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__":
//   {"key": "value"}} data      row-major, little-endian; the tensors follow each other without holes
//
// Files are treated as hostile: an Error names the file and the field that is wrong, and nothing is allocated
// that the file's size does not cover. Reading goes straight into the tensors, so the peak is their own size.
#pragma once

#include <map>
#include <string>

#include "lockstep/training/state_dict.h"

namespace lockstep {

using Metadata = std::map<std::string, std::string>;

// The tensors, on the CPU, in the order of the header. Where `metadata` is given it is replaced by the
// file's.
StateDict read_safetensors(const std::string& path, Metadata* metadata = nullptr);

// Only the header is read.
Metadata read_safetensors_metadata(const std::string& path);

// Written atomically (atomic_file.h). Names must differ and be UTF-8; tensors may have any strides and device
// but meta.
void write_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

}  // namespace lockstep
