// Note [Flat chunks]. A kernel over a list of tensors (an optimizer step, a gradient norm) is one parallel
// pass: the tensors' elements are taken as one range, cut as in Note [Fixed chunks], so that many small
// tensors share a chunk and a large one has many. Each tensor starts at a multiple of 64 in that range, which
// keeps vectors aligned and rows of different threads out of one cache line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {

class FlatChunks {
 public:
  // numel(item) for each item of the list.
  template <class List, class Numel>
  FlatChunks(const List& list, Numel&& numel) {
    items_.reserve(list.size());
    for (const auto& item : list) {
      const int64_t n = numel(item);
      items_.push_back({total_, n});
      total_ += (n + kAlign - 1) / kAlign * kAlign;
    }
  }

  int64_t count() const { return (total_ + kElementGrain - 1) / kElementGrain; }

  // Calls body(i, begin, end) for the elements of each item i that lie in the chunk.
  template <class F>
  void for_pieces(int64_t chunk, F&& body) const {
    const int64_t begin = chunk * kElementGrain, end = std::min(total_, begin + kElementGrain);
    auto after = std::upper_bound(items_.begin(), items_.end(), begin,
                                  [](int64_t at, const Item& item) { return at < item.start; });
    for (size_t i = size_t(after - items_.begin()) - 1; i < items_.size() && items_[i].start < end; i++) {
      const int64_t first = std::max<int64_t>(begin - items_[i].start, 0);
      const int64_t last = std::min(end - items_[i].start, items_[i].numel);
      if (first < last) body(i, first, last);
    }
  }

 private:
  static constexpr int64_t kAlign = 64;
  static_assert(kElementGrain % kAlign == 0);
  struct Item {
    int64_t start, numel;
  };
  std::vector<Item> items_;
  int64_t total_ = 0;
};

}  // namespace lockstep::cpu
