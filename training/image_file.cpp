#include "lockstep/training/image_file.h"

#include <png.h>

#include <algorithm>
#include <charconv>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "lockstep/training/input_file.h"

namespace lockstep {

namespace {

constexpr uint64_t kMostFileBytes = uint64_t(256) << 20;
constexpr uint32_t kMostPixelsAside = 1 << 16;
constexpr uint64_t kMostPixels = uint64_t(1) << 27;

std::string read_whole(const std::string& path) {
  InputFile file(path);
  uint64_t bytes = file.size_limit();
  LOCKSTEP_CHECK(bytes <= kMostFileBytes, path, ": ", bytes, " bytes are no image, at most ", kMostFileBytes,
                 " are read");
  std::string content(bytes, '\0');
  file.read(std::as_writable_bytes(std::span(content)), "the image");
  return content;
}

// ---- PNG ----
//
// libpng reports errors by longjmp, which runs no destructors. So each call of it stands in a function whose
// locals have none and are set before setjmp; what they work on lives in a PngReader outside of it.

struct PngReader {
  std::string_view content;
  size_t at = 0;
  png_structp png = nullptr;
  png_infop info = nullptr;
  char message[128] = "";
  png_uint_32 width = 0, height = 0;
  int channels = 0;

  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader->message, sizeof reader->message, "%s", text);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep out, png_size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader->content.size() - reader->at) png_error(png, "the file ends too early");
  std::memcpy(out, reader->content.data() + reader->at, count);
  reader->at += count;
}

// Reads up to the pixels and sets the conversions. False: see reader.message.
bool read_png_header(PngReader& reader) {
  png_structp png = reader.png;
  png_infop info = reader.info;
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_user_limits(png, kMostPixelsAside, kMostPixelsAside);
  png_set_chunk_malloc_max(png, 8 << 20);
  png_set_chunk_cache_max(png, 64);
  png_set_read_fn(png, &reader, on_read);
  png_read_info(png, info);
  png_set_expand(png);  // palettes to colours, small greys to 8 bits, tRNS to alpha
  png_set_scale_16(png);
  png_color_16 black{};
  png_set_background(png, &black, PNG_BACKGROUND_GAMMA_SCREEN, 0, 1.0);
  png_read_update_info(png, info);
  reader.width = png_get_image_width(png, info);
  reader.height = png_get_image_height(png, info);
  reader.channels = png_get_channels(png, info);
  if (png_get_bit_depth(png, info) != 8 ||
      png_get_rowbytes(png, info) != size_t(reader.width) * size_t(reader.channels))
    png_error(png, "the pixel format is not supported");
  return true;
}

bool read_png_pixels(PngReader& reader, png_bytepp rows) {
  png_structp png = reader.png;
  if (setjmp(png_jmpbuf(png))) return false;
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

Tensor read_png(const std::string& path, std::string_view content) {
  PngReader reader;
  reader.content = content;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  LOCKSTEP_CHECK(reader.png, path, ": libpng does not start: ", reader.message);
  reader.info = png_create_info_struct(reader.png);
  LOCKSTEP_CHECK(reader.info, path, ": libpng does not start: ", reader.message);
  LOCKSTEP_CHECK(read_png_header(reader), path, ": is no usable PNG: ", reader.message);

  // Deflate makes at most 1032 bytes of one, and a pixel there may be an eighth of a byte.
  uint64_t pixels = uint64_t(reader.width) * reader.height;
  LOCKSTEP_CHECK(pixels <= kMostPixels && pixels / 8 / 1032 <= content.size(), path, ": the PNG says ",
                 reader.width, " x ", reader.height, " pixels, which a file of ", content.size(),
                 " bytes cannot hold, or too many (", kMostPixels, " are read)");
  Tensor image = empty({int64_t(reader.height), int64_t(reader.width), reader.channels}, DType::uint8);
  std::vector<png_bytep> rows(reader.height);
  for (size_t y = 0; y < rows.size(); y++)
    rows[y] = image.data<uint8_t>() + y * (image.bytes() / rows.size());
  LOCKSTEP_CHECK(read_png_pixels(reader, rows.data()), path, ": the PNG is damaged: ", reader.message);
  return image;
}

// ---- PGM ----

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// The numbers of a PGM file as text: separated by white space, and from '#' to the end of the line is a
// comment.
class PgmText {
 public:
  PgmText(const std::string& path, std::string_view content) : path_(path), content_(content), at_(2) {}

  uint32_t number(const char* what, uint32_t most) {
    while (at_ < content_.size() && (is_space(content_[at_]) || content_[at_] == '#'))
      at_ = content_[at_] == '#' ? std::min(content_.find('\n', at_), content_.size()) : at_ + 1;
    uint32_t value = 0;
    auto [end, error] = std::from_chars(content_.data() + at_, content_.data() + content_.size(), value);
    LOCKSTEP_CHECK(error == std::errc() && value <= most, path_, ": ", what, " at byte ", at_,
                   " of the PGM is \"", content_.substr(at_, 12), "\", expected a number up to ", most);
    at_ = size_t(end - content_.data());
    return value;
  }
  std::string_view rest() const { return content_.substr(at_); }

 private:
  const std::string& path_;
  std::string_view content_;
  size_t at_;
};

Tensor read_pgm(const std::string& path, std::string_view content) {
  PgmText text(path, content);
  uint32_t width = text.number("the width", kMostPixelsAside),
           height = text.number("the height", kMostPixelsAside);
  uint32_t most = text.number("the maximum", 65535);
  LOCKSTEP_CHECK(width > 0 && height > 0 && most > 0, path, ": the PGM says ", width, " x ", height,
                 " pixels up to ", most);
  bool binary = content[1] == '5';
  // In text a pixel is a digit and a space, which the last may lack.
  size_t sample_bytes = binary && most < 256 ? 1 : 2, pixels = size_t(width) * height;
  std::string_view data = text.rest();
  LOCKSTEP_CHECK(pixels * sample_bytes <= data.size() + (binary ? 0 : 1), path, ": the PGM says ", width,
                 " x ", height, " pixels, but only ", data.size(), " bytes follow");
  if (binary) {
    LOCKSTEP_CHECK(!data.empty() && is_space(data[0]), path,
                   ": the PGM's header does not end in a space or a new line");
    data.remove_prefix(1);
    LOCKSTEP_CHECK(pixels * sample_bytes <= data.size(), path, ": the PGM ends within its pixels");
  }
  Tensor image = empty({height, width, 1}, DType::uint8);
  uint8_t* out = image.data<uint8_t>();
  for (size_t i = 0; i < pixels; i++) {
    uint32_t value;
    if (!binary) {
      value = text.number("a pixel", most);
    } else {
      value = uint8_t(data[i * sample_bytes]);
      if (sample_bytes == 2) value = value << 8 | uint8_t(data[i * 2 + 1]);
      LOCKSTEP_CHECK(value <= most, path, ": pixel ", i, " of the PGM is ", value, ", its maximum is ", most);
    }
    out[i] = uint8_t((value * 255 + most / 2) / most);
  }
  return image;
}

}  // namespace

Tensor read_image(const std::string& path) {
  std::string content = read_whole(path);
  if (content.starts_with("\x89PNG")) return read_png(path, content);
  if (content.starts_with("P2") || content.starts_with("P5")) return read_pgm(path, content);
  throw_error(concat(path, ": is neither a PNG nor a PGM (P2, P5) image"));
}

}  // namespace lockstep
