// Digits for examples/mnist.cpp from elsewhere than MNIST's files: moved at random, or from one image.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/random.h"
#include "lockstep/training/image_file.h"
#include "lockstep/training/mnist.h"

namespace lockstep {

// The digits of another data set, each moved by up to `limit` pixels down or up and right or left. The shift is drawn from the
// sample's own random stream: it depends on the seed, the epoch and the digit, not on the worker.
class ShiftedDigits : public Dataset {
 public:
  ShiftedDigits(std::shared_ptr<const Dataset> digits, int64_t limit)
      : digits_(std::move(digits)), limit_(limit) {}
  int64_t size() const override { return digits_->size(); }
  std::string sample_name(int64_t index) const override { return digits_->sample_name(index); }

  Sample get(int64_t index) const override {
    Sample sample = digits_->get(index);  // [28, 28, 1]
    RandomState state = generator().reserve(2);
    auto words = Philox{state.seed}(state.offset);
    int64_t down = int64_t(words[0] % (2 * limit_ + 1)) - limit_,
            right = int64_t(words[1] % (2 * limit_ + 1)) - limit_;
    Tensor moved = full(sample.image.shape(), normalize_mnist_pixel(0));
    window(moved, down, right).copy_(window(sample.image, -down, -right));
    return {moved, sample.label};
  }

 private:
  // What of an image stays in the picture when it is moved, at its place after the move.
  static Tensor window(const Tensor& image, int64_t down, int64_t right) {
    int64_t rows = image.size(0), columns = image.size(1);
    return image.slice(0, std::max<int64_t>(down, 0), rows + std::min<int64_t>(down, 0))
        .slice(1, std::max<int64_t>(right, 0), columns + std::min<int64_t>(right, 0));
  }

  std::shared_ptr<const Dataset> digits_;
  int64_t limit_;
};

// An image as the network knows them: 28 x 28, grey, white on black. Larger ones are averaged down, colours become grey,
// and where the corners are bright, the digit is black on white.
inline Tensor read_digit(const std::string& path) {
  Tensor image = read_image(path);
  int64_t rows = image.size(0), columns = image.size(1), channels = image.size(2);
  LOCKSTEP_CHECK(rows >= 28 && columns >= 28, path, ": the image is ", rows, " x ", columns,
                 ", expected at least 28 x 28");
  std::vector<float> sums(28 * 28), counts(28 * 28), pixels = image.to_vector<float>();
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++) {
      size_t at = size_t(row * 28 / rows * 28 + column * 28 / columns);
      for (int64_t c = 0; c < channels; c++)
        sums[at] += pixels[size_t((row * columns + column) * channels + c)];
      counts[at] += float(channels);
    }
  for (size_t i = 0; i < sums.size(); i++) sums[i] /= counts[i];
  bool inverted = sums[0] + sums[27] + sums[27 * 28] + sums[28 * 28 - 1] > 4 * 127;
  for (float& value : sums)
    value = normalize_mnist_pixel(uint8_t(std::lround(inverted ? 255 - value : value)));
  return from_vector(sums, {1, 28, 28, 1});
}

}  // namespace lockstep
