#include "lockstep/ops/adam.h"

#include <cmath>

#include "lockstep/ops/flat_chunks.h"

namespace lockstep::cpu {

namespace {

template <class S>
struct Factors {
  S keep;   // of the weight: 1 - lr * weight_decay, or 1
  S decay;  // added to the gradient: weight_decay, or 0
  S one_minus_beta1, beta2, one_minus_beta2;
  S step_size;  // lr / (1 - beta1^t)
  S v_scale;    // 1 / sqrt(1 - beta2^t)
  S epsilon;
};

template <class S>
Factors<S> factors(const ParameterUpdate& u, const AdamRule& rule) {
  double correction1 = 1 - std::pow(rule.beta1, double(u.step)),
         correction2 = 1 - std::pow(rule.beta2, double(u.step));
  return {.keep = S(rule.decoupled ? 1 - u.lr * u.weight_decay : 1),
          .decay = S(rule.decoupled ? 0 : u.weight_decay),
          .one_minus_beta1 = S(1 - rule.beta1),
          .beta2 = S(rule.beta2),
          .one_minus_beta2 = S(1 - rule.beta2),
          .step_size = S(u.lr / correction1),
          .v_scale = S(1 / std::sqrt(correction2)),
          .epsilon = S(rule.epsilon)};
}

template <class T, class S>
void update_piece(T* __restrict w, const T* __restrict g, S* __restrict m, S* __restrict v, int64_t n,
                  Factors<S> f) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    S weight = f.keep * S(w[i]);
    S grad = S(g[i]) + f.decay * weight;
    S first = m[i] + f.one_minus_beta1 * (grad - m[i]);
    S second = f.beta2 * v[i] + f.one_minus_beta2 * grad * grad;
    m[i] = first;
    v[i] = second;
    w[i] = T(weight - f.step_size * first / (std::sqrt(second) * f.v_scale + f.epsilon));
  }
}

}  // namespace

void adam_update(std::span<const ParameterUpdate> updates, const AdamRule& rule, Stream) {
  FlatChunks chunks(updates, [](const ParameterUpdate& u) { return u.parameter.numel(); });
  parallel_chunks(chunks.count(), [&](int64_t chunk) {
    chunks.for_pieces(chunk, [&](size_t i, int64_t begin, int64_t end) {
      const ParameterUpdate& u = updates[i];
      dispatch_float(u.parameter.dtype(), [&]<class T>() {
        using S = Compute<T>;
        update_piece(u.parameter.data<T>() + begin, u.grad.data<T>() + begin, u.state[0].data<S>() + begin,
                     u.state[1].data<S>() + begin, end - begin, factors<S>(u, rule));
      });
    });
  });
}

}  // namespace lockstep::cpu
