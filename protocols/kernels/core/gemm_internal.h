// Gemm64 with the instruction set chosen by the caller, for tests of each path on one machine.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_INTERNAL_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_INTERNAL_H_

#include <cstdint>

#include "protocols/kernels/core/gemm.h"
#include "protocols/kernels/core/gemm_isa.h"

namespace tfe_bench {
namespace internal {

// The arguments of Gemm64.
struct GemmArgs {
  int64_t m, n, k;
  const uint64_t* a;
  int64_t lda;
  const uint64_t* b;
  int64_t ldb;
  uint64_t* c;
  int64_t ldc;
  bool accumulate;
};

void GemmWith(const GemmIsa& isa, const GemmArgs& args, const ParallelFor& parallel);

}  // namespace internal
}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_INTERNAL_H_
