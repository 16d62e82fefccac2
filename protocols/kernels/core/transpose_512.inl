// Transposition in registers, for packed operands of files that are compiled for AVX-512.
#include <immintrin.h>

#include "protocols/kernels/core/unroll.h"

namespace tfe_bench {
namespace internal {
namespace {

// 8 x 8 words: word i of v[j] becomes word j of v[i].
// (Intrinsics without a mask have an undefined operand, about which GCC 12 warns.)
inline TFE_BENCH_INLINE void Transpose(__m512i (&v)[8]) {
  __m512i even[4], odd[4];
  Unroll<4>([&](auto i) TFE_BENCH_INLINE {
    even[i] = _mm512_maskz_unpacklo_epi64(0xff, v[2 * i], v[2 * i + 1]);
    odd[i] = _mm512_maskz_unpackhi_epi64(0xff, v[2 * i], v[2 * i + 1]);
  });
  Unroll<2>([&](auto i) TFE_BENCH_INLINE {
    const __m512i(&of)[4] = i == 0 ? even : odd;
    const __m512i low04 = _mm512_maskz_shuffle_i64x2(0xff, of[0], of[1], 0x88);
    const __m512i high04 = _mm512_maskz_shuffle_i64x2(0xff, of[2], of[3], 0x88);
    const __m512i low26 = _mm512_maskz_shuffle_i64x2(0xff, of[0], of[1], 0xdd);
    const __m512i high26 = _mm512_maskz_shuffle_i64x2(0xff, of[2], of[3], 0xdd);
    v[0 + i] = _mm512_maskz_shuffle_i64x2(0xff, low04, high04, 0x88);
    v[4 + i] = _mm512_maskz_shuffle_i64x2(0xff, low04, high04, 0xdd);
    v[2 + i] = _mm512_maskz_shuffle_i64x2(0xff, low26, high26, 0x88);
    v[6 + i] = _mm512_maskz_shuffle_i64x2(0xff, low26, high26, 0xdd);
  });
}

// Of a vector of words, those of which a row or column has `words` more.
inline __mmask8 MaskOf(int64_t words) {
  return static_cast<__mmask8>(words >= 8 ? 0xff : words <= 0 ? 0 : (1 << words) - 1);
}

}  // namespace
}  // namespace internal
}  // namespace tfe_bench
