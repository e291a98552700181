#include "lockstep/ops/sgd.h"

#include "lockstep/ops/flat_chunks.h"

namespace lockstep::cpu {

namespace {

enum class Momentum { none, classic, nesterov };

template <class S>
struct Factors {
  S lr, weight_decay, momentum, gain;
};

template <Momentum kind, class T, class S>
void update_piece(T* __restrict w, const T* __restrict g, S* __restrict m, int64_t n, Factors<S> f) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    S d = S(g[i]) + f.weight_decay * S(w[i]);
    if constexpr (kind != Momentum::none) {
      S moved = f.momentum * m[i] + f.gain * d;
      m[i] = moved;
      d = kind == Momentum::nesterov ? d + f.momentum * moved : moved;
    }
    w[i] = T(S(w[i]) - f.lr * d);
  }
}

template <Momentum kind>
void update_all(std::span<const ParameterUpdate> updates, const SGDRule& rule) {
  FlatChunks chunks(updates, [](const ParameterUpdate& u) { return u.parameter.numel(); });
  parallel_chunks(chunks.count(), [&](int64_t chunk) {
    chunks.for_pieces(chunk, [&](size_t i, int64_t begin, int64_t end) {
      const ParameterUpdate& u = updates[i];
      dispatch_float(u.parameter.dtype(), [&]<class T>() {
        using S = Compute<T>;
        // The state starts at zero, so a first step only has to take the gradient whole.
        double gain = u.step == 1 ? 1 : 1 - rule.dampening;
        S* m = kind == Momentum::none ? nullptr : u.state[0].data<S>() + begin;
        update_piece<kind>(u.parameter.data<T>() + begin, u.grad.data<T>() + begin, m, end - begin,
                           Factors<S>{S(u.lr), S(u.weight_decay), S(rule.momentum), S(gain)});
      });
    });
  });
}

}  // namespace

void sgd_update(std::span<const ParameterUpdate> updates, const SGDRule& rule, Stream) {
  if (rule.momentum == 0) update_all<Momentum::none>(updates, rule);
  else if (rule.nesterov) update_all<Momentum::nesterov>(updates, rule);
  else update_all<Momentum::classic>(updates, rule);
}

}  // namespace lockstep::cpu
