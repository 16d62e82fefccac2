// Secret permutations of the shuffle protocol: drawn from a PRF key, applied to rows.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PERMUTATION_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PERMUTATION_H_

#include <cstdint>

#include "protocols/kernels/core/aes_ctr.h"

namespace tfe_bench {

// Writes a uniformly random permutation of 0..n-1, 0 <= n < 2^31, that depends on nothing but
// (key, hi, lo, n): two parties with the same key draw the same one on any CPU.
// Fisher-Yates with exact rejection, so no permutation is favored. Consumes about n/4 counter
// blocks from (hi, lo); the number is random, so the caller leaves room: it reserves n + 64 blocks,
// which are exceeded with a probability far below 2^-128.
// Its memory accesses follow the permutation: the caller must be allowed to know it.
void RandomPermutation(const AesKey& key, uint64_t hi, uint64_t lo, int64_t n, int32_t* out);

// Row i of `out` = row perm[i] of `in`, for i in [0, n). Rows are row_bytes long and contiguous,
// `in` and `out` do not overlap, and the caller has checked that perm's entries are in range.
void ApplyPermutation(const int32_t* perm, int64_t n, int64_t row_bytes, const void* in,
                      void* out);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PERMUTATION_H_
