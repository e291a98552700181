// A data set: numbered samples. A DataLoader makes batches of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct Sample {
  Tensor image;  // [H, W, C], usually float32; one shape and dtype for all samples of a data set
  int64_t label = 0;
};

struct Batch {
  Tensor images;                 // [N, H, W, C]
  Tensor labels;                 // [N] int64
  std::vector<int64_t> indices;  // [N] the samples' numbers in the data set
  int64_t epoch = 0;
  int64_t index = 0;  // of the batch in its epoch; begin_epoch(epoch, index + 1) goes on after it

  int64_t size() const { return int64_t(indices.size()); }
};

// Thread safety: the loader's workers call the const functions at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;

  // While get runs, generator() is the sample's own random stream, a function of (seed, epoch, index): what
  // an augmentation draws from it does not depend on the number of workers or ranks. Nothing is recorded for
  // backward.
  virtual Sample get(int64_t index) const = 0;

  // For error messages: a file's path where there is one.
  virtual std::string sample_name(int64_t index) const { return "sample " + std::to_string(index); }

  // Optional fast path for data that is in memory: makes a whole batch at once and returns true.
  virtual bool fill_batch(std::span<const int64_t> indices, Tensor& images, Tensor& labels) const {
    (void)indices, (void)images, (void)labels;
    return false;
  }
};

}  // namespace lockstep
