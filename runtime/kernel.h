// How an op finds its kernel. An op's header declares each kernel once; the CPU half lives in namespace cpu
// of ops/x.cpp, the CUDA half in namespace cu of ops/x.cu, with the same signature.
#pragma once

#include "lockstep/runtime/stream.h"

// Small functions that kernels of both kinds call.
#ifdef __CUDACC__
#define LOCKSTEP_HD __host__ __device__
#else
#define LOCKSTEP_HD
#endif

#ifdef LOCKSTEP_CUDA
#define LOCKSTEP_KERNEL(name, ...) \
  namespace cpu {                  \
  void name(__VA_ARGS__);          \
  }                                \
  namespace cu {                   \
  void name(__VA_ARGS__);          \
  }
#define LOCKSTEP_CUDA_CALL(name, ...) cu::name(__VA_ARGS__)
#else
#define LOCKSTEP_KERNEL(name, ...) \
  namespace cpu {                  \
  void name(__VA_ARGS__);          \
  }
#define LOCKSTEP_CUDA_CALL(name, ...) ::lockstep::throw_error("[" #name "] this build has no CUDA back end")
#endif

// LOCKSTEP_DISPATCH(stream, kernel, args...) calls kernel(args..., stream) of the stream's device; nothing on
// meta.
#define LOCKSTEP_DISPATCH(stream, name, ...)                                                            \
  do {                                                                                                  \
    ::lockstep::Stream lockstep_stream = (stream);                                                      \
    switch (lockstep_stream.device.type) {                                                              \
      case ::lockstep::DeviceType::cpu: cpu::name(__VA_ARGS__, lockstep_stream); break;                 \
      case ::lockstep::DeviceType::cuda: LOCKSTEP_CUDA_CALL(name, __VA_ARGS__, lockstep_stream); break; \
      case ::lockstep::DeviceType::meta: break;                                                         \
    }                                                                                                   \
  } while (0)
