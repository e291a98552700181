#include "lockstep/training/data_loader.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep {

namespace {

// Streams of one Philox key: epoch numbers for the order, and with the top bit set for the samples.
constexpr uint64_t kSampleStream = uint64_t(1) << 63;

uint64_t join(uint32_t low, uint32_t high) { return uint64_t(high) << 32 | low; }

LoaderOptions checked(LoaderOptions options) {
  LOCKSTEP_CHECK(options.batch_size > 0, "[data_loader] batch_size ", options.batch_size,
                 ", expected at least 1");
  LOCKSTEP_CHECK(options.workers >= 0, "[data_loader] workers ", options.workers, ", expected at least 0");
  LOCKSTEP_CHECK(options.prefetch > 0, "[data_loader] prefetch ", options.prefetch, ", expected at least 1");
  LOCKSTEP_CHECK(options.world_size > 0 && 0 <= options.rank && options.rank < options.world_size,
                 "[data_loader] rank ", options.rank, " of world_size ", options.world_size);
  return options;
}

// Copies sample `i` into its row of the batch.
void place(const Sample& sample, int64_t i, int64_t count, Tensor& images, Tensor& labels) {
  LOCKSTEP_CHECK(sample.image.defined() && sample.image.device().is_cpu(),
                 "the image is undefined or not on the CPU");
  Tensor image = sample.image.contiguous();
  if (i == 0) {
    Shape shape = image.shape();
    shape.insert(0, count);
    images = empty(shape, image.dtype());
    labels = empty({count}, DType::int64);
  }
  Shape expected = images.shape();
  expected.erase(0);
  LOCKSTEP_CHECK(image.shape() == expected && image.dtype() == images.dtype(), "the image is ", image.dtype(),
                 " ", image.shape(), ", the batch's first is ", images.dtype(), " ", expected);
  if (size_t bytes = image.bytes())
    std::memcpy(static_cast<char*>(images.raw_data()) + size_t(i) * bytes, image.raw_data(), bytes);
  labels.data<int64_t>()[i] = sample.label;
}

}  // namespace

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(size_t(std::max<int64_t>(size, 0)));
  std::iota(order.begin(), order.end(), int64_t(0));
  Philox philox{seed};
  for (int64_t i = size - 1; i > 0; i--) {
    auto words = philox(uint64_t(i), uint64_t(epoch));
    // 64 bits against at most 2^40 samples: the bias of the remainder is below 2^-24 of a chance.
    std::swap(order[size_t(i)], order[join(words[0], words[1]) % uint64_t(i + 1)]);
  }
  return order;
}

RandomState sample_random_state(uint64_t seed, int64_t epoch, int64_t index) {
  auto words = Philox{seed}(uint64_t(index), uint64_t(epoch) | kSampleStream);
  return {join(words[0], words[1]), 0};
}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(checked(options)),
      size_(dataset_ ? dataset_->size() : 0),
      slots_(size_t(options.prefetch)) {
  LOCKSTEP_CHECK(dataset_, "[data_loader] no data set");
  int64_t global_batch = options_.batch_size * options_.world_size;
  batches_ = size_ / global_batch;
  auto [begin, end] = rank_part(batches_);  // what is left after the full batches
  if (end > begin && !options_.drop_last) batches_++;
  try {
    for (int i = 0; i < options_.workers; i++) threads_.emplace_back([this] { work(); });
  } catch (...) {  // no more threads to be had: those that run must end before the members they use
    stop();
    throw;
  }
}

DataLoader::~DataLoader() { stop(); }

void DataLoader::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_++;
  }
  to_make_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int64_t DataLoader::samples() const {
  if (batches_ == 0) return 0;
  auto [begin, end] = rank_part(batches_ - 1);
  return (batches_ - 1) * options_.batch_size + end - begin;
}

// This rank's samples of a global batch: their positions in the epoch's order.
std::pair<int64_t, int64_t> DataLoader::rank_part(int64_t batch) const {
  int64_t global_batch = options_.batch_size * options_.world_size, first = batch * global_batch;
  int64_t count = std::clamp<int64_t>(size_ - first, 0, global_batch);
  return {first + count * options_.rank / options_.world_size,
          first + count * (options_.rank + 1) / options_.world_size};
}

void DataLoader::begin_epoch(int64_t epoch, int64_t start_batch) {
  LOCKSTEP_CHECK(epoch >= 0, "[data_loader] epoch ", epoch, ", expected at least 0");
  LOCKSTEP_CHECK(0 <= start_batch && start_batch <= batches_, "[data_loader] start_batch ", start_batch,
                 " of an epoch of ", batches_, " batches");
  std::vector<int64_t> order;
  if (options_.shuffle) order = epoch_order(size_, options_.seed, epoch);
  {
    std::lock_guard lock(mutex_);
    order_ = std::move(order);
    epoch_ = epoch;
    generation_++;
    next_made_ = next_given_ = start_batch;
    failed_ = false;
    for (Slot& slot : slots_) slot = {};
  }
  to_make_.notify_all();
}

// REQUIRES: mutex_ held.
DataLoader::Job DataLoader::next_job(int64_t batch) const {
  auto [begin, end] = rank_part(batch);
  std::vector<int64_t> indices(size_t(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  if (options_.shuffle)
    for (int64_t& index : indices) index = order_[size_t(index)];
  return {std::move(indices), epoch_, batch, generation_};
}

Batch DataLoader::make_batch(Job job) const {
  NoGradGuard no_grad;
  MemoryScope scope("data");
  Batch result{{}, {}, std::move(job.indices), job.epoch, job.batch};
  if (dataset_->fill_batch(result.indices, result.images, result.labels)) return result;
  for (int64_t i = 0; i < result.size(); i++) {
    if (job.generation != generation_) throw Error("[data_loader] the batch is no longer wanted");
    int64_t index = result.indices[size_t(i)];
    auto failure = [&](const std::string& what) {
      return concat("[data_loader] sample ", index, " (", dataset_->sample_name(index), "): ", what);
    };
    try {
      Generator stream;
      stream.set_state(sample_random_state(options_.seed, job.epoch, index));
      GeneratorGuard guard(stream);
      place(dataset_->get(index), i, result.size(), result.images, result.labels);
    } catch (const OutOfMemory&) {
      throw;  // its report is worth more than the sample's name
    } catch (const std::exception& error) {
      throw Error(failure(error.what()));
    } catch (...) {
      throw Error(failure("threw something that is no std::exception"));
    }
  }
  return result;
}

std::optional<Batch> DataLoader::next() {
  std::unique_lock lock(mutex_);
  LOCKSTEP_CHECK(epoch_ >= 0, "[data_loader] next() before begin_epoch()");
  LOCKSTEP_CHECK(!failed_, "[data_loader] epoch ", epoch_, " ended with an error at batch ", next_given_,
                 "; begin_epoch() starts again");
  if (next_given_ >= batches_) return std::nullopt;

  if (threads_.empty()) {
    Job job = next_job(next_given_);
    lock.unlock();
    try {
      Batch made = make_batch(std::move(job));
      next_given_++;
      return made;
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  Slot& slot = slots_[size_t(next_given_ % options_.prefetch)];
  made_.wait(lock, [&] { return slot.ready; });
  Slot taken = std::exchange(slot, {});
  if (taken.error) {
    failed_ = true;
    lock.unlock();
    std::rethrow_exception(taken.error);
  }
  next_given_++;
  lock.unlock();
  to_make_.notify_one();
  return std::move(taken.batch);
}

void DataLoader::work() {
  SingleThreadGuard single;  // the workers are the parallelism: no OpenMP team for each
  std::unique_lock lock(mutex_);
  for (;;) {
    to_make_.wait(lock, [&] {
      return stopping_ || (epoch_ >= 0 && !failed_ && next_made_ < batches_ &&
                           next_made_ < next_given_ + options_.prefetch);
    });
    if (stopping_) return;
    int64_t batch = next_made_++;
    uint64_t generation = generation_;
    Slot made;
    try {
      Job job = next_job(batch);
      lock.unlock();
      made.batch = make_batch(std::move(job));
    } catch (...) {
      made.error = std::current_exception();
    }
    made.ready = true;
    if (!lock.owns_lock()) lock.lock();
    if (generation != generation_) continue;
    slots_[size_t(batch % options_.prefetch)] = std::move(made);
    made_.notify_one();
  }
}

DataLoader::Range DataLoader::epoch(int64_t epoch, int64_t start_batch) {
  begin_epoch(epoch, start_batch);
  return Range(*this);
}

}  // namespace lockstep
