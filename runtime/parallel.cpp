#include "lockstep/runtime/parallel.h"

#include <omp.h>

#include <exception>
#include <mutex>

#include "lockstep/runtime/check.h"
#include "lockstep/runtime/thread_state.h"

namespace lockstep {

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

int num_threads() { return omp_get_max_threads(); }

void set_num_threads(int threads) {
  LOCKSTEP_CHECK(threads >= 1, "[set_num_threads] got ", threads, ", expected at least 1");
  omp_set_num_threads(threads);
}

void parallel_chunks(int64_t chunks, FunctionRef<void(int64_t)> body) {
  if (chunks <= 1 || omp_in_parallel() || omp_get_max_threads() == 1) {
    for (int64_t chunk = 0; chunk < chunks; chunk++) body(chunk);
    return;
  }
  std::exception_ptr failure;
  int64_t failed_chunk = chunks;
  std::mutex failure_mutex;
  const ThreadState state = thread_state();
// Always the whole team, whatever the number of chunks: libgomp ends and starts threads when its size changes.
#pragma omp parallel
  {
    ThreadStateGuard guard(state);
#pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      try {
        body(chunk);
      } catch (...) {
        std::lock_guard lock(failure_mutex);
        if (chunk < failed_chunk) {
          failed_chunk = chunk;
          failure = std::current_exception();
        }
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

SingleThreadGuard::SingleThreadGuard() : previous_(omp_get_max_threads()) {
  if (previous_ != 1) omp_set_num_threads(1);
}

SingleThreadGuard::~SingleThreadGuard() {
  if (previous_ != 1) omp_set_num_threads(previous_);
}

}  // namespace lockstep
