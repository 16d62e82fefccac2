// Matrix product over the ring Z_2^64, the work horse of every dense and convolution layer.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_H_

#include <cstdint>
#include <functional>

namespace tfe_bench {

// Splits [0, total) into ranges, runs the function on each, possibly at the same time, and
// returns when all are done. cost_per_unit estimates CPU cycles (as tensorflow::Shard wants).
using ParallelFor =
    std::function<void(int64_t total, int64_t cost_per_unit,
                       const std::function<void(int64_t begin, int64_t end)>& run)>;

// c[m,n] = a[m,k] * b[k,n] mod 2^64, or c += when `accumulate`. Row major; leading dimensions in
// elements. Any size, zeros included (k = 0 is the zero matrix). c overlaps neither a nor b.
// The result does not depend on the instruction set or on the number of threads, the running
// time does not depend on the values.
void Gemm64(int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t lda, const uint64_t* b,
            int64_t ldb, uint64_t* c, int64_t ldc, bool accumulate, const ParallelFor& parallel);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_H_
