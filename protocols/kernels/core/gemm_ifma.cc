#include <immintrin.h>

#include "protocols/kernels/core/gemm_isa.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr const GemmIsa& kIsa = kGemmIfma;

// Reads the low 52 bits of a and b, and adds the low 52 bits of their product: right modulo 2^52.
inline __m512i MultiplyAdd(__m512i sum, __m512i a, __m512i b) {
  return _mm512_madd52lo_epu64(sum, a, b);
}

}  // namespace
}  // namespace internal
}  // namespace tfe_bench

#include "protocols/kernels/core/gemm_tiles_512.inl"

namespace tfe_bench {
namespace internal {

void GemmBlockIfma(const GemmBlock& g) { MultiplyBlock(g); }
void PackAIfma(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed) {
  PackPanels(m, k, a, lda, packed);
}
void GemmDotIfma(const GemmArgs& g) { MultiplyDots(g); }

}  // namespace internal
}  // namespace tfe_bench
