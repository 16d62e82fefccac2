#include <immintrin.h>

#include "protocols/kernels/core/gemm_isa.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr const GemmIsa& kIsa = kGemmAvx512;

inline __m512i MultiplyAdd(__m512i sum, __m512i a, __m512i b) {
  return _mm512_add_epi64(sum, _mm512_mullo_epi64(a, b));
}

}  // namespace
}  // namespace internal
}  // namespace tfe_bench

#include "protocols/kernels/core/gemm_tiles_512.inl"

namespace tfe_bench {
namespace internal {

void GemmBlockAvx512(const GemmBlock& g) { MultiplyBlock(g); }
void PackAAvx512(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed) {
  PackPanels(m, k, a, lda, packed);
}
void GemmDotAvx512(const GemmArgs& g) { MultiplyDots(g); }

}  // namespace internal
}  // namespace tfe_bench
