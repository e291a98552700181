#include "lockstep/ops/onednn.h"

#ifdef LOCKSTEP_ONEDNN
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/check.h"
#include "lockstep/runtime/parallel.h"

#if DNNL_VERSION_MAJOR != 2
#error "ops/onednn.cpp is written for oneDNN 2; configure with -DLOCKSTEP_ONEDNN=OFF to use Eigen instead"
#endif

namespace lockstep::onednn {
namespace {

using cpu::ConvChunks;
using cpu::ConvDirection;
using cpu::ConvGeometry;

void check(dnnl_status_t status, const char* call) {
  LOCKSTEP_CHECK(status == dnnl_success, "[onednn] ", call, " failed with status ", int(status));
}

// Never destroyed: threads may still be at work when main has returned.
const dnnl::engine& engine() {
  static const dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct ConvKey {
  ConvDirection direction;
  ConvGeometry g;  // N: samples of a chunk
  bool bias;
  friend bool operator==(const ConvKey&, const ConvKey&) = default;
};

struct ConvKeyHash {
  size_t operator()(const ConvKey& key) const {
    const ConvGeometry& g = key.g;
    size_t hash = size_t(key.direction) * 2 + key.bias;
    for (int64_t field : {g.N, g.H, g.W, g.C, g.K, g.R, g.S, g.stride_h, g.stride_w, g.top, g.bottom, g.left,
                          g.right, g.dilation_h, g.dilation_w, g.groups})
      hash = (hash ^ size_t(field)) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 32);
  }
};

// One direction of a convolution of a chunk of samples, for one thread, with what it takes to run it.
// Its weights (or their gradient) have the layout that oneDNN picked; images are NHWC.
class Convolution {
 public:
  // `layout`: weights in this layout instead of one to be picked.
  Convolution(const ConvKey& key, const dnnl::memory::desc* layout) {
    using dnnl::memory;
    const ConvGeometry& g = key.g;
    auto image = [](int64_t n, int64_t c, int64_t h, int64_t w) {
      return memory::desc({n, c, h, w}, memory::data_type::f32, memory::format_tag::nhwc);
    };
    const memory::desc x = image(g.N, g.C, g.H, g.W), y = image(g.N, g.K, g.P, g.Q);
    const int64_t c = g.group_channels(), k = g.K / g.groups;
    memory::dims dims = {k, c, g.R, g.S}, krsc = {g.R * g.S * c, 1, g.S * c, c};
    if (g.groups > 1) {
      dims.insert(dims.begin(), g.groups);
      krsc.insert(krsc.begin(), k * g.R * g.S * c);
    }
    plain_ = memory::desc(dims, memory::data_type::f32, krsc);
    const memory::desc any =
        layout ? *layout : memory::desc(dims, memory::data_type::f32, memory::format_tag::any);
    const memory::desc bias =
        key.bias ? memory::desc({g.K}, memory::data_type::f32, memory::format_tag::x) : memory::desc();
    const memory::dims strides = {g.stride_h, g.stride_w}, dilations = {g.dilation_h - 1, g.dilation_w - 1};
    const memory::dims before = {g.top, g.left}, after = {g.bottom, g.right};
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto algorithm = dnnl::algorithm::convolution_direct;

    // oneDNN cuts the work by the number of threads at creation: here, one.
    SingleThreadGuard guard;
    dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, algorithm, x, any, bias, y, strides, dilations, before, after},
        attributes, engine());
    auto take = [&](auto primitive, const auto& description, const memory::desc& weights) {
      primitive_ = primitive;
      weights_ = weights;
      scratch_ = description.scratchpad_desc();
      is_reference_ = std::strstr(description.impl_info_str(), "ref") != nullptr;
    };
    switch (key.direction) {
      case ConvDirection::forward:
        take(dnnl::convolution_forward(forward), forward, forward.weights_desc());
        x_argument_ = DNNL_ARG_SRC, weights_argument_ = DNNL_ARG_WEIGHTS, y_argument_ = DNNL_ARG_DST;
        break;
      case ConvDirection::backward_input: {
        dnnl::convolution_backward_data::primitive_desc backward(
            {algorithm, x, any, y, strides, dilations, before, after}, attributes, engine(), forward);
        take(dnnl::convolution_backward_data(backward), backward, backward.weights_desc());
        x_argument_ = DNNL_ARG_DIFF_SRC, weights_argument_ = DNNL_ARG_WEIGHTS,
        y_argument_ = DNNL_ARG_DIFF_DST;
        break;
      }
      case ConvDirection::backward_weight: {
        dnnl::convolution_backward_weights::primitive_desc backward(
            {algorithm, x, any, y, strides, dilations, before, after}, attributes, engine(), forward);
        take(dnnl::convolution_backward_weights(backward), backward, backward.diff_weights_desc());
        x_argument_ = DNNL_ARG_SRC, weights_argument_ = DNNL_ARG_DIFF_WEIGHTS,
        y_argument_ = DNNL_ARG_DIFF_DST;
        break;
      }
    }
    samples_ = g.N, x_ = x, y_ = y, bias_ = bias;
    const bool gradient = key.direction == ConvDirection::backward_weight;
    reorder_ = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), gradient ? weights_ : plain_, engine(),
                                                           gradient ? plain_ : weights_));
  }

  int64_t samples() const { return samples_; }
  bool is_reference() const { return is_reference_; }
  const dnnl::memory::desc& weights() const { return weights_; }
  size_t weights_bytes() const { return weights_.get_size(); }
  size_t scratch_bytes() const { return scratch_.get_size(); }
  dnnl::memory weights_at(void* data) const { return dnnl::memory(weights_, engine(), data); }

  // Between KRSC and the layout of weights(): one way for weights, the other for their gradient.
  dnnl::memory from_plain(const float* plain, void* data) const {
    dnnl::memory weights = weights_at(data);
    reorder(dnnl::memory(plain_, engine(), const_cast<float*>(plain)), weights);
    return weights;
  }
  void to_plain(void* data, float* plain) const {
    reorder(weights_at(data), dnnl::memory(plain_, engine(), plain));
  }

  // Any thread. x and y (or their gradients) are those of the chunk; bias may be null.
  void run(const float* x, const dnnl::memory& weights, const float* bias, const float* y,
           void* scratch) const {
    std::unique_ptr<Slot> slot = take_slot();
    {
      SingleThreadGuard guard;
      dnnl_exec_arg_t arguments[5] = {{weights_argument_, weights.get()}};
      int count = 1;
      auto add = [&](int argument, dnnl::memory& memory, const void* data) {
        memory.set_data_handle(const_cast<void*>(data));  // oneDNN knows no pointers to const
        arguments[count++] = {argument, memory.get()};
      };
      add(x_argument_, slot->x, x);
      add(y_argument_, slot->y, y);
      if (bias) add(DNNL_ARG_BIAS, slot->bias, bias);
      if (scratch) add(DNNL_ARG_SCRATCHPAD, slot->scratch, scratch);
      check(dnnl_primitive_execute(primitive_.get(), slot->stream.get(), count, arguments), "convolution");
      slot->stream.wait();
    }
    std::lock_guard lock(mutex_);
    slots_.push_back(std::move(slot));
  }

 private:
  // Memory objects of one thread at work, kept because making them costs as much as a small convolution.
  struct Slot {
    explicit Slot(const Convolution& c)
        : stream(engine()), x(c.x_, engine(), nullptr), y(c.y_, engine(), nullptr) {
      if (c.bias_.get_size() > 0) bias = dnnl::memory(c.bias_, engine(), nullptr);
      if (c.scratch_.get_size() > 0) scratch = dnnl::memory(c.scratch_, engine(), nullptr);
    }
    dnnl::stream stream;
    dnnl::memory x, y, bias, scratch;
  };

  std::unique_ptr<Slot> take_slot() const {
    {
      std::lock_guard lock(mutex_);
      if (!slots_.empty()) {
        std::unique_ptr<Slot> slot = std::move(slots_.back());
        slots_.pop_back();
        return slot;
      }
    }
    return std::make_unique<Slot>(*this);
  }

  void reorder(const dnnl::memory& from, const dnnl::memory& to) const {
    SingleThreadGuard guard;
    dnnl::stream stream(engine());
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}};
    check(dnnl_primitive_execute(reorder_.get(), stream.get(), 2, arguments), "reorder");
    stream.wait();
  }

  dnnl::memory::desc plain_, weights_, x_, y_, bias_, scratch_;
  dnnl::primitive primitive_, reorder_;
  int x_argument_ = 0, weights_argument_ = 0, y_argument_ = 0;
  bool is_reference_ = false;
  int64_t samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Slot>> slots_;
};

// A convolution of the whole batch: of full chunks, and of the last if it has fewer samples. Null: oneDNN has
// none that is worth using.
struct ConvPair {
  std::shared_ptr<const Convolution> full, last;

  const Convolution& of(int64_t samples, const ConvChunks& chunks) const {
    return samples == chunks.samples ? *full : *last;
  }
};

class ConvCache {
 public:
  ConvPair find(const ConvKey& key) {
    std::lock_guard lock(mutex_);
    if (auto found = entries_.find(key); found != entries_.end()) {
      found->second.used = ++clock_;
      return found->second.pair;
    }
    if (entries_.size() >= kCapacity) {
      auto oldest = entries_.begin();
      for (auto it = entries_.begin(); it != entries_.end(); ++it)
        if (it->second.used < oldest->second.used) oldest = it;
      entries_.erase(oldest);
    }
    return entries_.emplace(key, Entry{make(key), ++clock_}).first->second.pair;
  }

 private:
  static constexpr size_t kCapacity = 256;
  struct Entry {
    ConvPair pair;
    uint64_t used;
  };

  static ConvPair make(const ConvKey& key) try {
    const ConvChunks chunks = conv_chunks(key.direction, key.g);
    ConvPair pair;
    ConvKey chunk = key;
    chunk.g.N = chunks.samples;
    auto full = std::make_shared<Convolution>(chunk, nullptr);
    if (full->is_reference()) return {};
    pair.full = full;
    chunk.g.N = key.g.N % chunks.samples;
    if (chunk.g.N == 0) return pair;
    auto last = std::make_shared<Convolution>(chunk, &full->weights());
    if (last->is_reference()) return {};
    pair.last = last;
    return pair;
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return {};
    throw_error(concat("[onednn] convolution: ", error.what()));
  }

  std::mutex mutex_;
  std::unordered_map<ConvKey, Entry, ConvKeyHash> entries_;
  uint64_t clock_ = 0;
};

ConvPair find_convolution(ConvDirection direction, const ConvGeometry& g, bool bias) {
  static ConvCache& cache = *new ConvCache;  // never destroyed, like the engine
  return cache.find({direction, g, bias});
}

// Calls body(convolution, first sample, scratch, chunk) for each chunk of the batch.
template <class Body>
void for_chunks(const ConvPair& pair, ConvDirection direction, const ConvGeometry& g, Body&& body) {
  const ConvChunks chunks = conv_chunks(direction, g);
  const cpu::ThreadScratch scratch(
      std::max(pair.full->scratch_bytes(), pair.last ? pair.last->scratch_bytes() : 0));
  cpu::run_chunks(g, chunks.count, [&](int64_t chunk) {
    const int64_t first = chunk * chunks.samples;
    body(pair.of(std::min(chunks.samples, g.N - first), chunks), first, scratch.get(), chunk);
  });
}

}  // namespace

bool conv_supports(ConvDirection direction, const ConvGeometry& g, bool bias) {
  return find_convolution(direction, g, bias).full != nullptr;
}

void conv_forward(const ConvGeometry& g, const float* x, const float* w, const float* bias, bool relu,
                  float* y) {
  const ConvPair pair = find_convolution(ConvDirection::forward, g, bias != nullptr);
  const Memory memory(Device(), pair.full->weights_bytes());
  const dnnl::memory weights = pair.full->from_plain(w, memory.data());
  for_chunks(pair, ConvDirection::forward, g, [&](const Convolution& c, int64_t n, void* scratch, int64_t) {
    c.run(x + n * g.x_sample(), weights, bias, y + n * g.y_sample(), scratch);
    // oneDNN's own ReLU turns a NaN into 0.
    if (relu) cpu::relu_in_place(y + n * g.y_sample(), c.samples() * g.y_sample());
  });
}

void conv_backward_input(const ConvGeometry& g, const float* dy, const float* w, float* dx) {
  const ConvPair pair = find_convolution(ConvDirection::backward_input, g, false);
  const Memory memory(Device(), pair.full->weights_bytes());
  const dnnl::memory weights = pair.full->from_plain(w, memory.data());
  for_chunks(pair, ConvDirection::backward_input, g,
             [&](const Convolution& c, int64_t n, void* scratch, int64_t) {
               c.run(dx + n * g.x_sample(), weights, nullptr, dy + n * g.y_sample(), scratch);
             });
}

void conv_backward_weight(const ConvGeometry& g, const float* x, const float* dy, float* dw) {
  const ConvPair pair = find_convolution(ConvDirection::backward_weight, g, false);
  const int64_t count = conv_chunks(ConvDirection::backward_weight, g).count;
  const int64_t values = int64_t(pair.full->weights_bytes() / sizeof(float));
  const int64_t stride = (values + 15) / 16 * 16;  // each partial sum at its own cache lines
  const Memory memory(Device(), size_t(count * stride) * sizeof(float));
  float* partials = static_cast<float*>(memory.data());
  for_chunks(pair, ConvDirection::backward_weight, g,
             [&](const Convolution& c, int64_t n, void* scratch, int64_t chunk) {
               c.run(x + n * g.x_sample(), c.weights_at(partials + chunk * stride), nullptr,
                     dy + n * g.y_sample(), scratch);
             });
  cpu::add_partials(partials, count, stride, values, partials);
  pair.full->to_plain(partials, dw);
}

// oneDNN cuts a product by the number of threads it could use, even where it then runs on one, and the cut
// decides how sums are rounded: the guard makes it the same everywhere.
void sgemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, float alpha, const float* A,
           int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  SingleThreadGuard guard;
  check(dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', M, N, K, alpha, A, lda, B, ldb, beta, C,
                   ldc),
        "sgemm");
}

}  // namespace lockstep::onednn
#endif
