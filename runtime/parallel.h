// Threads of the CPU back end: one OpenMP pool, shared with oneDNN.
//
// Note [Fixed chunks]. The range is cut into chunks by its length and `grain` alone, never by the number of
// threads, and whatever is reduced across chunks is combined in the order of the chunks. So every result has
// the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lockstep {

int num_threads();
void set_num_threads(int threads);  // for the calling thread and the workers it starts; throws below 1

// A reference to a callable: what std::function would be without the allocation. The callable must outlive
// the call.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
  FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// Calls body(chunk) for every chunk in [0, chunks), on all threads; serially inside another parallel region.
// Workers see the caller's ThreadState. The first exception (by chunk) is rethrown here after all chunks have
// ended.
void parallel_chunks(int64_t chunks, FunctionRef<void(int64_t)> body);

inline constexpr int64_t kElementGrain =
    16384;  // elements of a cheap elementwise loop worth handing to a thread

// Calls body(begin, end) for the chunks [0, grain), [grain, 2 grain), ... of [0, n).
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& body) {
  if (n <= grain) {
    if (n > 0) body(int64_t(0), n);
    return;
  }
  parallel_chunks((n + grain - 1) / grain,
                  [&](int64_t chunk) { body(chunk * grain, std::min(n, (chunk + 1) * grain)); });
}

// Runs what follows with one thread per OpenMP region of this thread (libraries called from inside a chunk).
class SingleThreadGuard {
 public:
  SingleThreadGuard();
  ~SingleThreadGuard();
  SingleThreadGuard(const SingleThreadGuard&) = delete;
  SingleThreadGuard& operator=(const SingleThreadGuard&) = delete;

 private:
  int previous_;
};

}  // namespace lockstep
