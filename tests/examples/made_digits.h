// IDX files of made "digits": a bright square whose place tells the class, on noise. Learnt in a few dozen
// steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/runtime/random.h"

namespace lockstep::test {

inline std::vector<uint8_t> made_digit(int label, uint64_t index) {
  Philox random{7};
  std::vector<uint8_t> pixels(28 * 28);
  for (size_t i = 0; i < pixels.size(); i += 4) {
    auto words = random(index * 1000 + i);
    for (size_t j = 0; j < 4; j++) pixels[i + j] = uint8_t(words[j] % 60);
  }
  auto shift = random(index, 1);
  int top = 2 + 9 * (label / 4) + int(shift[0] % 3), left = 1 + 7 * (label % 4) + int(shift[1] % 2);
  for (int row = 0; row < 5; row++)
    for (int column = 0; column < 5; column++) pixels[size_t((top + row) * 28 + left + column)] = 230;
  return pixels;
}

inline void write_idx(const std::filesystem::path& folder, const std::string& prefix, int count,
                      uint64_t first) {
  auto word = [](std::ofstream& file, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) file.put(char(value >> shift));
  };
  std::ofstream images(folder / (prefix + "-images-idx3-ubyte"), std::ios::binary);
  std::ofstream labels(folder / (prefix + "-labels-idx1-ubyte"), std::ios::binary);
  for (uint32_t value : {2051u, uint32_t(count), 28u, 28u}) word(images, value);
  for (uint32_t value : {2049u, uint32_t(count)}) word(labels, value);
  for (int i = 0; i < count; i++) {
    int label = (i * 7 + i / 10) % 10;
    auto pixels = made_digit(label, first + uint64_t(i));
    images.write(reinterpret_cast<const char*>(pixels.data()), std::streamsize(pixels.size()));
    labels.put(char(label));
  }
}

// folder/mnist with the four files.
inline void write_made_mnist(const std::filesystem::path& folder, int train, int test) {
  std::filesystem::create_directories(folder / "mnist");
  write_idx(folder / "mnist", "train", train, 0);
  write_idx(folder / "mnist", "t10k", test, 1'000'000);
}

// One digit as a binary PGM.
inline void write_made_pgm(const std::filesystem::path& path, int label) {
  auto pixels = made_digit(label, 5'000'000);
  std::ofstream file(path, std::ios::binary);
  file << "P5\n# made\n28 28\n255\n";
  file.write(reinterpret_cast<const char*>(pixels.data()), std::streamsize(pixels.size()));
}

}  // namespace lockstep::test
