#include "lockstep/training/image_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/training/test_files.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::TempFolder;

std::string big_endian(uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string chunk(const std::string& type, const std::string& data) {
  std::string body = type + data;
  uLong crc = crc32(0, reinterpret_cast<const Bytef*>(body.data()), uInt(body.size()));
  return big_endian(uint32_t(data.size())) + body + big_endian(uint32_t(crc));
}

// `lines`: the rows, each with its filter byte in front. `extra`: chunks before the pixels.
std::string png(uint32_t width, uint32_t height, int bits, int colour_type, const std::string& lines,
                const std::string& extra = "") {
  std::string packed(compressBound(lines.size()), '\0');
  uLongf length = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &length, reinterpret_cast<const Bytef*>(lines.data()),
           lines.size());
  packed.resize(length);
  std::string header =
      big_endian(width) + big_endian(height) + std::string{char(bits), char(colour_type), 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + extra + chunk("IDAT", packed) + chunk("IEND", "");
}

constexpr int kGrey = 0, kColour = 2, kPalette = 3, kGreyAlpha = 4, kColourAlpha = 6;

// The pixels, after the shape.
std::vector<int> read(const TempFolder& folder, const std::string& bytes) {
  Tensor x = read_image(folder.write("image", bytes));
  EXPECT_EQ(x.dtype(), DType::uint8);
  std::vector<int> result(x.shape().begin(), x.shape().end());
  for (int value : x.to_vector<int>()) result.push_back(value);
  return result;
}

using Ints = std::vector<int>;
std::string bytes(std::initializer_list<int> values) { return std::string(values.begin(), values.end()); }

TEST(ImageFile, png_of_every_kind) {
  TempFolder folder(TempFolder::Where::memory);
  EXPECT_EQ(read(folder, png(2, 2, 8, kGrey, bytes({0, 1, 2, 0, 3, 255}))), (Ints{2, 2, 1, 1, 2, 3, 255}));
  EXPECT_EQ(read(folder, png(1, 1, 8, kGrey, bytes({0, 77}))), (Ints{1, 1, 1, 77}));
  EXPECT_EQ(read(folder, png(3, 1, 1, kGrey, bytes({0, 0xa0}))), (Ints{1, 3, 1, 255, 0, 255}));
  EXPECT_EQ(read(folder, png(2, 1, 4, kGrey, bytes({0, 0x3f}))), (Ints{1, 2, 1, 51, 255}));
  EXPECT_EQ(read(folder, png(2, 1, 16, kGrey, bytes({0, 0x80, 0x00, 0xff, 0xff}))),
            (Ints{1, 2, 1, 128, 255}));
  EXPECT_EQ(read(folder, png(1, 2, 8, kColour, bytes({0, 1, 2, 3, 0, 4, 5, 6}))),
            (Ints{2, 1, 3, 1, 2, 3, 4, 5, 6}));
  std::string palette = chunk("PLTE", bytes({10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(read(folder, png(2, 1, 8, kPalette, bytes({0, 1, 0}), palette)),
            (Ints{1, 2, 3, 40, 50, 60, 10, 20, 30}));
  // Transparency is laid over black: opaque, half and none.
  EXPECT_EQ(read(folder, png(3, 1, 8, kGreyAlpha, bytes({0, 200, 255, 200, 0, 100, 51}))),
            (Ints{1, 3, 1, 200, 0, 20}));
  EXPECT_EQ(read(folder, png(1, 1, 8, kColourAlpha, bytes({0, 255, 100, 50, 51}))),
            (Ints{1, 1, 3, 51, 20, 10}));
  EXPECT_EQ(read(folder, png(2, 1, 8, kGrey, bytes({0, 7, 8}), chunk("tRNS", bytes({0, 7})))),
            (Ints{1, 2, 1, 0, 8}));
  // A gamma that a viewer would apply is not.
  EXPECT_EQ(read(folder, png(1, 1, 8, kGrey, bytes({0, 77}), chunk("gAMA", big_endian(100000)))),
            (Ints{1, 1, 1, 77}));
}

TEST(ImageFile, hostile_png) {
  TempFolder folder(TempFolder::Where::memory);
  auto refused = [&](const std::string& content, const std::string& reason) {
    std::string path = folder.write("hostile.png", content);
    reset_peak_memory(Device());
    size_t before = memory_stats(Device()).peak_bytes;
    expect_error([&] { read_image(path); }, {path, reason});
    EXPECT_LT(memory_stats(Device()).peak_bytes - before, 1u << 20);
  };
  std::string good = png(20, 20, 8, kGrey, std::string(20 * 21, '\0'));
  for (size_t length = 8; length < good.size(); length++) refused(good.substr(0, length), "PNG");
  for (size_t at = 8; at < good.size(); at++) {  // each byte but the signature is under a checksum
    std::string damaged = good;
    damaged[at] ^= 1;
    try {
      read_image(folder.write("hostile.png", damaged));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("hostile.png"), std::string::npos) << error.what();
    }
  }
  refused(png(60000, 60000, 8, kColour, "x"), "60000 x 60000");
  refused(png(100000, 1, 8, kGrey, "x"), "PNG");
  refused(png(0, 1, 8, kGrey, "x"), "PNG");
  refused(png(0x7fffffff, 0x7fffffff, 16, kColourAlpha, "x"), "PNG");
  refused(png(20, 20, 8, kGrey, std::string(10 * 21, '\0')), "damaged");  // half of the lines
  refused(png(1, 1, 8, kPalette, bytes({0, 1})), "PNG");                  // no palette
  refused(png(1, 1, 3, kGrey, bytes({0, 1})), "PNG");
}

TEST(ImageFile, pgm) {
  TempFolder folder(TempFolder::Where::memory);
  EXPECT_EQ(read(folder, "P2\n# a comment\n3 1 # another\n255\n0 128\n255\n"), (Ints{1, 3, 1, 0, 128, 255}));
  EXPECT_EQ(read(folder, "P2 1 2 15 0 15"), (Ints{2, 1, 1, 0, 255}));
  EXPECT_EQ(read(folder, "P5 2 1 255\n" + bytes({7, 255})), (Ints{1, 2, 1, 7, 255}));
  EXPECT_EQ(read(folder, "P5\n2 1\n65535\n" + bytes({0x80, 0, 0xff, 0xff})), (Ints{1, 2, 1, 128, 255}));
  EXPECT_EQ(read(folder, "P5 1 1 255 #"), (Ints{1, 1, 1, '#'}));
}

TEST(ImageFile, hostile_pgm_and_others) {
  TempFolder folder(TempFolder::Where::memory);
  auto refused = [&](const std::string& content, const std::string& reason) {
    std::string path = folder.write("hostile.pgm", content);
    expect_error([&] { read_image(path); }, {path, reason});
  };
  refused("P5", "the width");
  refused("P5 x", "the width");
  refused("P5 -1 1 255\n7", "the width");
  refused("P5 65536 65536 255\n7", "65536 x 65536");
  refused("P5 65537 1 255\n7", "the width");
  refused("P5 99999999999999999999 1 255\n7", "the width");
  refused("P5 0 1 255\n7", "0 x 1");
  refused("P5 1 1 0\n7", "up to 0");
  refused("P5 1 1 65536\n7", "the maximum");
  refused("P5 2 1 255\n7", "ends within");
  refused("P5 3 1 255\n7", "only 2 bytes");
  refused("P5 1 1 255", "only 0 bytes");
  refused("P5 1 1 255x7", "does not end");
  refused("P5 1 1 100\n" + bytes({101}), "its maximum is 100");
  refused("P2 2 1 255 7", "pixels");
  refused("P2 2 1 255 7 256", "a pixel");
  refused("P2 2 1 255 7 #8", "a pixel");
  refused("P6 1 1 255\nabc", "neither");
  refused("", "neither");
  refused("<html>", "neither");
  expect_error([&] { read_image(folder.file("nowhere.png")); }, {"nowhere.png", "No such file"});
  expect_error([&] { read_image(folder.path()); }, {folder.path(), "not a regular file"});
}

}  // namespace
}  // namespace lockstep
