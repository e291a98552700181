#include "lockstep/training/mnist.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "lockstep/training/data_loader.h"
#include "tests/training/test_files.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::TempFolder;

std::string big_endian(uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string idx_images(uint32_t count, uint32_t rows = 28, uint32_t columns = 28) {
  std::string bytes = big_endian(2051) + big_endian(count) + big_endian(rows) + big_endian(columns);
  for (uint32_t i = 0; i < count * rows * columns; i++) bytes.push_back(char(i * 7 % 256));
  return bytes;
}

std::string idx_labels(uint32_t count) {
  std::string bytes = big_endian(2049) + big_endian(count);
  for (uint32_t i = 0; i < count; i++) bytes.push_back(char(i % 10));
  return bytes;
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = uInt(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(Mnist, reads_plain_and_gzip) {
  TempFolder folder;
  std::string images = idx_images(3), labels = idx_labels(3);
  std::string plain = folder.write("plain", images), packed = folder.write("packed.gz", gzip(images));
  for (const std::string& path : {plain, packed}) {
    Tensor x = read_idx_images(path);
    ASSERT_EQ(x.shape(), (Shape{3, 28, 28}));
    std::vector<uint8_t> values = x.to_vector<uint8_t>();
    for (size_t i = 0; i < values.size(); i++) ASSERT_EQ(values[i], i * 7 % 256);
  }
  EXPECT_EQ(read_idx_labels(folder.write("labels.gz", gzip(labels))).to_vector<int>(),
            (std::vector<int>{0, 1, 2}));
}

TEST(Mnist, folder_layouts) {
  TempFolder folder;
  expect_error([&] { load_mnist(folder.path(), Split::train); }, {"train-images-idx3-ubyte", folder.path()});
  folder.write("train-images-idx3-ubyte", idx_images(20));
  expect_error([&] { load_mnist(folder.path(), Split::train); }, {"train-labels-idx1-ubyte"});
  folder.write("train-labels-idx1-ubyte.gz", gzip(idx_labels(20)));
  EXPECT_EQ(load_mnist(folder.path(), Split::train).images.shape(), (Shape{20, 28, 28}));
  expect_error([&] { load_mnist(folder.path(), Split::test); }, {"t10k-images-idx3-ubyte"});
  // The mnist folder goes first.
  std::filesystem::create_directory(folder.file("mnist"));
  folder.write("mnist/train-images-idx3-ubyte.gz", gzip(idx_images(10)));
  folder.write("mnist/train-labels-idx1-ubyte.gz", gzip(idx_labels(10)));
  Mnist digits = load_mnist(folder.path(), Split::train);
  EXPECT_EQ(digits.labels.shape(), Shape{10});
  EXPECT_NE(digits.source.find("10 digits for training"), std::string::npos) << digits.source;
}

TEST(Mnist, data_set_normalises) {
  TempFolder folder;
  folder.write("t10k-images-idx3-ubyte", idx_images(5));
  folder.write("t10k-labels-idx1-ubyte", idx_labels(5));
  MnistDataset dataset(load_mnist(folder.path(), Split::test));
  ASSERT_EQ(dataset.size(), 5);
  Sample sample = dataset.get(4);
  EXPECT_EQ(sample.label, 4);
  ASSERT_EQ(sample.image.shape(), (Shape{28, 28, 1}));
  for (int i = 0; i < 784; i++) {
    double pixel = (4 * 784 + i) * 7 % 256;
    ASSERT_FLOAT_EQ(sample.image.data<float>()[i], float((pixel / 255 - 0.1307) / 0.3081));
  }
  int64_t order[] = {3, 0};
  Tensor images, labels;
  ASSERT_TRUE(dataset.fill_batch(order, images, labels));
  EXPECT_EQ(labels.to_vector<int>(), (std::vector<int>{3, 0}));
  EXPECT_EQ(images.select(0, 1).to_vector<float>(), dataset.get(0).image.to_vector<float>());
  expect_error([&] { dataset.get(5); }, {"sample 5 of 5"});
  expect_error([&] { MnistDataset({zeros({2, 28, 28}), zeros({2}), ""}); }, {"float32", "uint8"});
}

TEST(Cases, C48_mnist_idx_hostile_files) {
  TempFolder folder;
  std::string images = idx_images(100), labels = idx_labels(100);
  auto refused_images = [&](const std::string& bytes, const std::string& reason) {
    std::string path =
        folder.write(bytes.starts_with("\x1f\x8b") ? "probe-images.gz" : "probe-images", bytes);
    reset_peak_memory(Device());
    size_t before = memory_stats(Device()).peak_bytes;
    expect_error([&] { read_idx_images(path); }, {path, reason});
    EXPECT_LT(memory_stats(Device()).peak_bytes - before, 4u << 20) << reason;
  };
  auto refused_labels = [&](const std::string& bytes, const std::string& reason) {
    std::string path = folder.write("probe-labels", bytes);
    expect_error([&] { read_idx_labels(path); }, {path, reason});
  };
  std::string packed = gzip(images);
  refused_images(packed.substr(0, packed.size() / 2), "cut off");
  refused_images(packed.substr(0, packed.size() - 1), "cut off");  // in the checksum
  refused_images(packed.substr(0, 12), "cut off");
  refused_images("<!DOCTYPE html><html><body>404 Not Found</body></html>",
                 "magic number 1008813135, expected 2051");
  refused_images(gzip(packed), "decompress the file once");
  // As the gzip program writes it, with the original name inside.
  std::string named = packed;
  named[3] = 8;
  named.insert(10, "train-images\0", 13);
  EXPECT_EQ(read_idx_images(folder.write("named.gz", named)).size(0), 100);
  expect_error([&] { read_idx_images(folder.write("named", named)); },
               {"named: magic number 529205256, expected 2051"});
  refused_images(
      big_endian(2051) + big_endian(0xffffffff) + big_endian(28) + big_endian(28) + std::string(784, 'x'),
      "3367254359280 bytes");
  refused_images(gzip(big_endian(2051) + big_endian(0xffffffff) + big_endian(28) + big_endian(28)),
                 "3367254359280 bytes");
  refused_images(big_endian(2051) + big_endian(0xffffffff) + big_endian(0xffffffff) + big_endian(0xffffffff),
                 "cannot hold");
  refused_images(big_endian(2051) + big_endian(1u << 31) + big_endian(1u << 31) + big_endian(4),
                 "cannot hold");  // wraps to 0
  refused_images(idx_images(0), "no data");
  refused_images(labels, "holds labels, not images");
  refused_labels(images, "holds images, not labels");
  refused_images(images + "x", "more data follows");
  refused_images(gzip(images + "x"), "more data follows");
  refused_images(packed + "x", "more data follows");
  refused_images("", "the file ends in the header");
  refused_images(std::string("\x1f\x8b", 2), "cut off");
  std::string flipped = packed;
  flipped[flipped.size() - 6] ^= 1;  // the CRC
  refused_images(flipped, "damaged");
  for (size_t length = 0; length < images.size(); length += length < 32 ? 1 : 997)
    refused_images(images.substr(0, length), length < 16 ? "the file ends in" : "cannot hold");
  std::string bad_label = labels;
  bad_label[8 + 41] = 10;
  refused_labels(bad_label, "label 10 of digit 41");

  expect_error([&] { read_idx_images(folder.file("nowhere")); }, {"nowhere", "No such file"});
  expect_error([&] { read_idx_images(folder.path()); }, {folder.path(), "not a regular file"});

  folder.write("train-images-idx3-ubyte", images);
  folder.write("train-labels-idx1-ubyte", idx_labels(99));
  expect_error([&] { load_mnist(folder.path(), Split::train); }, {"100 images", "99 labels"});
  folder.write("train-images-idx3-ubyte", idx_images(100, 32, 28));
  expect_error([&] { load_mnist(folder.path(), Split::train); }, {"32 x 28", "28 x 28"});
}

TEST(Cases, C48_gzip_bomb) {
  // 50 MB of zeros in 50 kB behind a small, honest header: they are not unpacked.
  TempFolder folder;
  std::string path = folder.write("bomb.gz", gzip(idx_images(10) + std::string(50 << 20, '\0')));
  reset_peak_memory(Device());
  size_t before = memory_stats(Device()).peak_bytes;
  expect_error([&] { read_idx_images(path); }, {path, "more data follows"});
  EXPECT_LT(memory_stats(Device()).peak_bytes - before, 4u << 20);
}

std::string csv(int digits_per_class) {
  std::string text;
  for (int label = 0; label < 10; label++)
    for (int i = 0; i < digits_per_class; i++) {
      for (int p = 0; p < 784; p++) text += std::to_string(p == 0 ? label * 20 + i : p % 256) + ",";
      text += std::to_string(label) + "\n";
    }
  return text;
}

TEST(Mnist, subset_is_split_by_class) {
  TempFolder folder;
  folder.write("mnist_5k.csv.gz", gzip(csv(10)));
  auto first_pixels = [&](Split split, uint64_t seed) {
    Mnist digits = load_mnist(folder.path(), split, seed);
    std::vector<int> counts(10);
    for (int label : digits.labels.to_vector<int>()) counts[size_t(label)]++;
    EXPECT_EQ(counts, std::vector<int>(10, split == Split::train ? 8 : 2));
    EXPECT_NE(digits.source.find("5,000-digit subset"), std::string::npos) << digits.source;
    std::vector<int> pixels;
    for (int64_t i = 0; i < digits.labels.size(0); i++) {
      pixels.push_back(digits.images.data<uint8_t>()[i * 784]);
      EXPECT_EQ(pixels.back() / 20, digits.labels.data<uint8_t>()[i]);
      EXPECT_EQ(digits.images.data<uint8_t>()[i * 784 + 783], 783 % 256);
    }
    return pixels;
  };
  std::vector<int> train = first_pixels(Split::train, 1), test = first_pixels(Split::test, 1);
  std::set<int> together(train.begin(), train.end());
  together.insert(test.begin(), test.end());
  EXPECT_EQ(together.size(), 100u) << "disjoint and complete";
  EXPECT_EQ(first_pixels(Split::train, 1), train);
  EXPECT_NE(first_pixels(Split::train, 2), train);
}

TEST(Mnist, subset_hostile_files) {
  TempFolder folder;
  std::string good = csv(2);
  auto refused = [&](const std::string& bytes, const std::string& reason) {
    std::string path = folder.write("mnist_5k.csv", bytes);
    expect_error([&] { load_mnist_subset(path, Split::train); }, {path, reason});
  };
  refused("", "empty");
  refused(good.substr(2), "line 1 has 784 columns");
  refused("x" + good.substr(1), "line 1, column 1: \"x\"");
  refused("256" + good.substr(1), "line 1, column 1: \"256\"");
  refused("-1" + good.substr(1), "line 1, column 1: \"-1\"");
  refused("9.5" + good.substr(1), "line 1, column 1: \"9.5\"");
  refused(good.substr(0, good.size() / 2), "columns");
  refused(good.substr(0, good.size() - 2) + "10", "column 785: \"10\"");
  refused(std::string(1 << 20, '7'), "longer than");
  refused(std::string(1 << 20, '\0'), "longer than");
  auto refused_packed = [&](const std::string& bytes, const std::string& reason) {
    std::string path = folder.write("mnist_5k.csv.gz", bytes);
    expect_error([&] { load_mnist_subset(path, Split::train); }, {path, reason});
  };
  std::string packed = gzip(good);
  refused(packed, "line 1");
  refused_packed(packed.substr(0, packed.size() / 2), "cut off");
  refused_packed(packed + "x", "more data follows");
  refused_packed(gzip(std::string(20 << 20, '1')), "longer than");
  refused(csv(1), "too few");
  // Without a newline at the end, with carriage returns, and with numbers as floats it is the same.
  std::string other = good.substr(0, good.size() - 1);
  for (size_t at = other.find('\n'); at != other.npos; at = other.find('\n', at + 4))
    other.replace(at, 1, ".0\r\n");
  EXPECT_EQ(load_mnist_subset(folder.write("a", other), Split::train).labels.numel(), 10);
}

TEST(Mnist, full_files) {
  const char* data = std::getenv("LOCKSTEP_DATA");
  if (!data || !std::filesystem::is_directory(std::filesystem::path(data) / "mnist"))
    GTEST_SKIP() << "LOCKSTEP_DATA does not name a folder with mnist/ in it";
  Mnist train = load_mnist(data, Split::train), test = load_mnist(data, Split::test);
  EXPECT_EQ(train.images.shape(), (Shape{60000, 28, 28}));
  EXPECT_EQ(test.images.shape(), (Shape{10000, 28, 28}));
  // The constants of the normalisation are the mean and the deviation of the training set.
  double sum = 0, squares = 0;
  const uint8_t* pixel = train.images.data<uint8_t>();
  for (int64_t i = 0; i < train.images.numel(); i++) sum += pixel[i], squares += double(pixel[i]) * pixel[i];
  double mean = sum / double(train.images.numel()) / 255;
  double deviation = std::sqrt(squares / double(train.images.numel()) / (255.0 * 255) - mean * mean);
  EXPECT_NEAR(mean, 0.1307, 5e-5);
  EXPECT_NEAR(deviation, 0.3081, 5e-5);
}

}  // namespace
}  // namespace lockstep
