#include "lockstep/training/mnist.h"

#include <array>
#include <filesystem>

#include "lockstep/training/input_file.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

constexpr uint32_t kImagesMagic = 2051, kLabelsMagic = 2049;
constexpr uint32_t kGzipMagic = 0x1f8b;  // the upper half of what a gzip file begins with
constexpr int64_t kSide = 28;

uint32_t read_big_endian(InputFile& file) {
  std::array<std::byte, 4> b;
  file.read(b, "the header");
  return uint32_t(b[0]) << 24 | uint32_t(b[1]) << 16 | uint32_t(b[2]) << 8 | uint32_t(b[3]);
}

// The sizes of an IDX file of bytes with `ndim` axes.
Shape read_idx_header(InputFile& file, uint32_t magic, int ndim) {
  uint32_t found = read_big_endian(file);
  const char* kind = magic == kImagesMagic ? "images" : "labels";
  const char* hint = "; this is no MNIST file";
  if (found == kImagesMagic) hint = ": the file holds images, not labels";
  if (found == kLabelsMagic) hint = ": the file holds labels, not images";
  if (found >> 16 == kGzipMagic)
    hint = ": this is gzip data; decompress the file once, or let its name end in .gz";
  LOCKSTEP_CHECK(found == magic, file.path(), ": magic number ", found, ", expected ", magic, " for ", kind,
                 hint);

  Shape shape;
  uint64_t bytes = 1, header = 4 + 4 * uint64_t(ndim), limit = file.size_limit();
  for (int i = 0; i < ndim; i++) {
    uint64_t size = read_big_endian(file);
    shape.push_back(int64_t(size));
    // Three 32-bit sizes can overflow 64 bits; nothing that does fits in a file.
    bytes = size != 0 && bytes > UINT64_MAX / size ? UINT64_MAX : bytes * size;
  }
  LOCKSTEP_CHECK(bytes > 0, file.path(), ": the header says ", shape, ", which is no data at all");
  LOCKSTEP_CHECK(limit >= header && bytes <= limit - header, file.path(), ": the header says ", shape,
                 ", that is ", bytes, " bytes, but the file cannot hold more than ", limit);
  return shape;
}

Tensor read_idx(const std::string& path, uint32_t magic, int ndim, const char* what) {
  InputFile file(path);
  Shape shape = read_idx_header(file, magic, ndim);
  Tensor x = empty(shape, DType::uint8);
  file.read(std::as_writable_bytes(std::span(x.data<uint8_t>(), x.bytes())), what);
  file.expect_end(what);
  return x;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// `name` in `folder`, compressed or not; empty if there is neither.
std::string find(const fs::path& folder, const std::string& name) {
  for (const std::string& candidate : {name + ".gz", name})
    if (is_file(folder / candidate)) return (folder / candidate).string();
  return "";
}

std::string with_thousands(int64_t n) {
  std::string digits = std::to_string(n), text;
  for (size_t i = 0; i < digits.size(); i++) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace

Tensor read_idx_images(const std::string& path) { return read_idx(path, kImagesMagic, 3, "the images"); }

Tensor read_idx_labels(const std::string& path) {
  Tensor labels = read_idx(path, kLabelsMagic, 1, "the labels");
  const uint8_t* label = labels.data<uint8_t>();
  for (int64_t i = 0; i < labels.numel(); i++)
    LOCKSTEP_CHECK(label[i] <= 9, path, ": label ", int(label[i]), " of digit ", i, ", expected 0 to 9");
  return labels;
}

Mnist load_mnist(const std::string& directory, Split split, uint64_t seed) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const fs::path folders[] = {fs::path(directory) / "mnist", fs::path(directory)};
  for (const fs::path& folder : folders) {
    std::string images_path = find(folder, prefix + "-images-idx3-ubyte");
    std::string labels_path = find(folder, prefix + "-labels-idx1-ubyte");
    if (images_path.empty() && labels_path.empty()) continue;
    LOCKSTEP_CHECK(!images_path.empty(), labels_path, " is there, but not ", prefix,
                   "-images-idx3-ubyte[.gz]");
    LOCKSTEP_CHECK(!labels_path.empty(), images_path, " is there, but not ", prefix,
                   "-labels-idx1-ubyte[.gz]");
    Mnist digits{read_idx_images(images_path), read_idx_labels(labels_path), ""};
    LOCKSTEP_CHECK(digits.images.size(1) == kSide && digits.images.size(2) == kSide, images_path,
                   ": the images are ", digits.images.size(1), " x ", digits.images.size(2),
                   ", expected 28 x 28");
    LOCKSTEP_CHECK(digits.images.size(0) == digits.labels.size(0), images_path, " has ",
                   digits.images.size(0), " images, but ", labels_path, " has ", digits.labels.size(0),
                   " labels");
    digits.source = concat("MNIST, ", with_thousands(digits.labels.size(0)), " digits for ",
                           split == Split::train ? "training" : "testing", ", from ", folder.string());
    return digits;
  }
  for (const fs::path& folder : folders)
    if (std::string path = find(folder, "mnist_5k.csv"); !path.empty())
      return load_mnist_subset(path, split, seed);
  throw_error(concat("[mnist] no ", prefix, "-images-idx3-ubyte[.gz] or mnist_5k.csv[.gz] in ",
                     folders[0].string(), " or ", folders[1].string()));
}

float normalize_mnist_pixel(uint8_t pixel) { return float((pixel / 255.0 - 0.1307) / 0.3081); }

MnistDataset::MnistDataset(Mnist digits) : digits_(std::move(digits)) {
  const Tensor &images = digits_.images, &labels = digits_.labels;
  LOCKSTEP_CHECK(images.dtype() == DType::uint8 && images.ndim() == 3 && labels.dtype() == DType::uint8 &&
                     labels.shape() == Shape{images.size(0)},
                 "[mnist] images ", images.dtype(), " ", images.shape(), " and labels ", labels.dtype(), " ",
                 labels.shape(), ", expected uint8 [N, H, W] and uint8 [N]");
  image_shape_ = {images.size(1), images.size(2), 1};
  digits_.images = images.contiguous();
  digits_.labels = labels.contiguous();
}

std::string MnistDataset::sample_name(int64_t index) const {
  return concat("digit ", index, " of ", digits_.source);
}

Sample MnistDataset::get(int64_t index) const {
  Tensor images, labels;
  fill_batch({&index, 1}, images, labels);
  return {images.reshape(image_shape_), labels.item<int64_t>()};
}

bool MnistDataset::fill_batch(std::span<const int64_t> indices, Tensor& images, Tensor& labels) const {
  static const std::array<float, 256> normalized = [] {
    std::array<float, 256> table;
    for (int i = 0; i < 256; i++) table[size_t(i)] = normalize_mnist_pixel(uint8_t(i));
    return table;
  }();
  int64_t count = int64_t(indices.size()), pixels = image_shape_.numel();
  Shape shape = image_shape_;
  shape.insert(0, count);
  images = empty(shape);
  labels = empty({count}, DType::int64);
  float* out = images.data<float>();
  for (int64_t i = 0; i < count; i++) {
    int64_t index = indices[size_t(i)];
    LOCKSTEP_CHECK(0 <= index && index < size(), "[mnist] sample ", index, " of ", size());
    const uint8_t* in = digits_.images.data<uint8_t>() + index * pixels;
    for (int64_t p = 0; p < pixels; p++) *out++ = normalized[in[p]];
    labels.data<int64_t>()[i] = digits_.labels.data<uint8_t>()[index];
  }
  return true;
}

}  // namespace lockstep
