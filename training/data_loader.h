// DataLoader: batches of a data set, in order, made ahead of time by worker threads.
//
//   DataLoader loader(dataset, {.batch_size = 64, .shuffle = true, .workers = 2});
//   for (int64_t epoch = 0; epoch < 5; epoch++)
//     for (Batch& batch : loader.epoch(epoch)) step(batch.images, batch.labels);
//
// Note [Sample order]. The order of an epoch is a function of (seed, epoch) alone. It is cut into global
// batches of world_size * batch_size samples, and each of these into one consecutive part per rank. So the
// ranks' parts are disjoint and cover the data set, a global batch holds the same samples for every split
// into ranks, and begin_epoch(epoch, batch) goes on exactly where another process stopped. The last global
// batch is shared out evenly, never padded or repeated; a rank for which nothing is left has one batch fewer.
//
// Errors: what a sample throws is rethrown by next() when its batch is due, as an Error with the sample's
// index and name. Then that epoch is over: next() throws until begin_epoch.
//
// Thread safety: one consumer. The destructor stops the workers; it waits only for the samples being made at
// that moment.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/random.h"
#include "lockstep/training/dataset.h"

namespace lockstep {

struct LoaderOptions {
  int64_t batch_size = 64;  // per rank
  bool shuffle = false;
  uint64_t seed = 0;       // of the order and of the samples' random streams
  int workers = 0;         // threads; 0: next() makes the batch itself
  int prefetch = 4;        // batches made ahead of the consumer, at most
  bool drop_last = false;  // leaves out a last global batch that is not full
  int rank = 0;
  int world_size = 1;
};

// The numbers 0 .. size - 1 in the order of `epoch` (Fisher & Yates, with Philox numbers).
std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch);

// Where the random stream of one sample in one epoch starts.
RandomState sample_random_state(uint64_t seed, int64_t epoch, int64_t index);

class DataLoader {
 public:
  DataLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t batches() const { return batches_; }  // of this rank in an epoch
  int64_t samples() const;                      // of this rank in an epoch
  const Dataset& dataset() const { return *dataset_; }
  const LoaderOptions& options() const { return options_; }

  // Starts an epoch at a batch; batches of an epoch that has not ended are thrown away.
  void begin_epoch(int64_t epoch, int64_t start_batch = 0);
  std::optional<Batch> next();  // nothing at the end of the epoch

  class Range;
  Range epoch(int64_t epoch, int64_t start_batch = 0);

 private:
  struct Slot {
    bool ready = false;
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  // One batch to make; all that a worker needs without the mutex.
  struct Job {
    std::vector<int64_t> indices;
    int64_t epoch, batch;
    uint64_t generation;
  };

  std::pair<int64_t, int64_t> rank_part(int64_t batch) const;
  Job next_job(int64_t batch) const;
  Batch make_batch(Job job) const;
  void work();
  void stop();

  const std::shared_ptr<const Dataset> dataset_;
  const LoaderOptions options_;
  const int64_t size_;  // of the data set
  int64_t batches_ = 0;
  // Counts begin_epoch, and the end: the batch a worker is at is given up when it is no longer wanted.
  std::atomic<uint64_t> generation_{0};

  std::mutex mutex_;  // guards all below; the workers hold it only between samples
  std::condition_variable to_make_, made_;
  std::vector<int64_t> order_;
  int64_t epoch_ = -1;      // none has begun
  int64_t next_made_ = 0;   // the batch the next free worker makes
  int64_t next_given_ = 0;  // the batch the consumer gets next
  bool failed_ = false, stopping_ = false;
  std::vector<Slot> slots_;  // batch b lies in slot b % prefetch
  std::vector<std::thread> threads_;
};

// One epoch as a range, for `for`.
class DataLoader::Range {
 public:
  struct End {};
  class Iterator {
   public:
    explicit Iterator(DataLoader& loader) : loader_(loader), batch_(loader.next()) {}
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_.reset();  // its memory may be used for the batch that comes
      batch_ = loader_.next();
      return *this;
    }
    bool operator!=(End) const { return batch_.has_value(); }

   private:
    DataLoader& loader_;
    std::optional<Batch> batch_;
  };
  explicit Range(DataLoader& loader) : loader_(loader) {}
  Iterator begin() { return Iterator(loader_); }
  End end() const { return {}; }

 private:
  DataLoader& loader_;
};

}  // namespace lockstep
