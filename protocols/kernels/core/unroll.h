// Loops over register arrays, unrolled by the front end.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_UNROLL_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_UNROLL_H_

namespace tfe_bench {
namespace internal {

template <int kValue>
struct Index {
  __attribute__((always_inline)) constexpr operator int() const { return kValue; }
};

// f(Index<0>()), ..., f(Index<kCount - 1>()). A pragma unrolls too late for GCC: it has by then
// put an array of sums in memory and stores every sum in every step.
// Called with lambdas of one file only, so nothing compiled for one instruction set is shared.
template <int kCount, int kIndex = 0, typename F>
inline __attribute__((always_inline)) void Unroll(const F& f) {
  if constexpr (kIndex < kCount) {
    f(Index<kIndex>());
    Unroll<kCount, kIndex + 1>(f);
  }
}

}  // namespace internal
}  // namespace tfe_bench

#define TFE_BENCH_INLINE __attribute__((always_inline))

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_UNROLL_H_
