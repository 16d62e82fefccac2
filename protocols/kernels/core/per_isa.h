// One source for all instruction sets: the compiler has a vector form of plain loops for each.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PER_ISA_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PER_ISA_H_

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/unroll.h"

#define TFE_BENCH_VECTORIZED(isa) __attribute__((target(isa), optimize("O3")))

// Defines Choose<name>(), which gives `name` as compiled for this processor.  `name` is inline
// (TFE_BENCH_INLINE); `parameters` and `arguments` stand in brackets.
#define TFE_BENCH_PER_ISA(name, parameters, arguments)                                     \
  void name##Portable parameters { name arguments; }                                       \
  TFE_BENCH_VECTORIZED("avx2") void name##Avx2 parameters { name arguments; }              \
  TFE_BENCH_VECTORIZED("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")       \
  void name##Avx512 parameters { name arguments; }                                         \
  decltype(&name##Portable) Choose##name() {                                               \
    return Cpu().avx512 ? name##Avx512 : Cpu().avx2 ? name##Avx2 : name##Portable;         \
  }

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PER_ISA_H_
