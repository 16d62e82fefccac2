// Eight words at a time: the compiler has a form of it for each instruction set.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_VEC_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_VEC_H_

#include <cstdint>

namespace tfe_bench {

typedef uint64_t Vec __attribute__((vector_size(64), aligned(8), may_alias));

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_VEC_H_
