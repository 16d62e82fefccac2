// All 64 bits of products by IFMA and VNNI. With a = a0 + 2^12 a1 and b = b0 + 2^12 b1, where a0 and
// b0 have 12 bits:
//   a b = 2^12 (a1 b + a0 b1) + a0 b0 mod 2^64.
// One vpmadd52luq adds the low 52 bits of a1 b, and one those of a0 b1: the others are above 2^64.
// One vpdpwssd adds a0 b0 at two depths for 16 columns: exact in 32 bits up to a depth of 256. So 8
// products take 2.25 instructions of one micro-operation each; vpmullq and vpaddq take four on Intel.
//
// Packed panels, at each two depths: 8 rows of a as 8 a1, 8 a0, 8 a1, 8 a0 and 8 pairs of a0 of 16
// bits; 16 columns of b as 16 b, 16 b1, 16 b, 16 b1 and the pairs of b0, columns c and c + 8 side by
// side.
#include <immintrin.h>

#include "protocols/kernels/core/gemm_isa.h"
#include "protocols/kernels/core/transpose_512.inl"
#include "protocols/kernels/core/unroll.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr int64_t kMr = kGemmFullIfma.mr;
constexpr int64_t kNr = kGemmFullIfma.nr;
constexpr int kLow = 12;
constexpr int64_t kPairOfA = 2 * kMr * kGemmFullIfma.packed_bytes / 8;  // words
constexpr int64_t kPairOfB = 2 * kNr * kGemmFullIfma.packed_bytes / 8;
static_assert(kMr == 8 && kNr == 16 && kGemmFullIfma.kc <= 256 && kGemmFullIfma.ku == 2);

using Half = uint32_t __attribute__((may_alias));

inline int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of each panel of a: 49 rows are seven panels of 7.
inline int64_t PanelRows(int64_t m) { return Ceil(m, Ceil(m, kMr)); }

inline TFE_BENCH_INLINE __m512i LowPart(__m512i words) {
  return _mm512_and_si512(words, _mm512_set1_epi64((1 << kLow) - 1));
}

inline TFE_BENCH_INLINE __m512i HighPart(__m512i words) {
  return _mm512_maskz_srli_epi64(0xff, words, kLow);
}

inline TFE_BENCH_INLINE __m512i ShiftLeft(__m512i words, int by) {
  return _mm512_maskz_slli_epi64(0xff, words, by);
}

// kM rows and 16 columns of c.
template <int kM>
void Tile(const uint64_t* a, const uint64_t* b, int64_t pairs, uint64_t* c, int64_t ldc,
          bool accumulate, __mmask8 first, __mmask8 second) {
  __m512i high[kM][2], low[kM];
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    high[i][0] = high[i][1] = low[i] = _mm512_setzero_si512();
  });
  do {
    Unroll<2>([&](auto p) TFE_BENCH_INLINE {
      const uint64_t* words = b + p * 2 * kNr;
      const __m512i left = _mm512_load_si512(words), right = _mm512_load_si512(words + 8);
      const __m512i left_high = _mm512_load_si512(words + kNr);
      const __m512i right_high = _mm512_load_si512(words + kNr + 8);
      Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
        const uint64_t* row = a + p * 2 * kMr + i;
        const __m512i of_high = _mm512_set1_epi64(static_cast<int64_t>(row[0]));
        high[i][0] = _mm512_madd52lo_epu64(high[i][0], of_high, left);
        high[i][1] = _mm512_madd52lo_epu64(high[i][1], of_high, right);
        const __m512i of_low = _mm512_set1_epi64(static_cast<int64_t>(row[kMr]));
        high[i][0] = _mm512_madd52lo_epu64(high[i][0], of_low, left_high);
        high[i][1] = _mm512_madd52lo_epu64(high[i][1], of_low, right_high);
      });
    });
    const __m512i columns = _mm512_load_si512(b + 4 * kNr);
    const Half* rows = reinterpret_cast<const Half*>(a + 4 * kMr);
    Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
      const __m512i row = _mm512_set1_epi32(static_cast<int>(rows[i]));
      low[i] = _mm512_dpwssd_epi32(low[i], row, columns);
    });
    a += kPairOfA;
    b += kPairOfB;
  } while (--pairs > 0);
  const __mmask8 add = static_cast<__mmask8>(accumulate ? 0xff : 0);
  const __m512i half = _mm512_set1_epi64(0xffffffff);
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<2>([&](auto j) TFE_BENCH_INLINE {
      const __mmask8 mask = j == 0 ? first : second;
      uint64_t* to = c + i * ldc + 8 * j;
      const __m512i part =
          j == 0 ? _mm512_and_si512(low[i], half) : _mm512_maskz_srli_epi64(0xff, low[i], 32);
      const __m512i sum = _mm512_add_epi64(ShiftLeft(high[i][j], kLow), part);
      const __m512i before = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask & add), to);
      _mm512_mask_storeu_epi64(to, mask, _mm512_add_epi64(before, sum));
    });
  });
}

}  // namespace

void PackAFullIfma(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed) {
  const int64_t panel = PanelRows(m);
  for (int64_t i = 0; i < m; i += panel) {
    const int64_t rows = m - i < panel ? m - i : panel;
    for (int64_t p = 0; p < k; p += 8) {
      const __mmask8 mask = MaskOf(k - p);
      __m512i v[8];
      Unroll<8>([&](auto r) TFE_BENCH_INLINE {
        v[r] = _mm512_maskz_loadu_epi64(r < rows ? mask : 0, a + (i + (r < rows ? r : 0)) * lda + p);
      });
      Transpose(v);
      Unroll<4>([&](auto pair) TFE_BENCH_INLINE {
        if (p + 2 * pair >= k) return;
        const __m512i low[2] = {LowPart(v[2 * pair]), LowPart(v[2 * pair + 1])};
        Unroll<2>([&](auto of) TFE_BENCH_INLINE {
          _mm512_storeu_si512(packed + of * 2 * kMr, HighPart(v[2 * pair + of]));
          _mm512_storeu_si512(packed + of * 2 * kMr + kMr, low[of]);
        });
        _mm256_storeu_si256(
            reinterpret_cast<__m256i*>(packed + 4 * kMr),
            _mm512_maskz_cvtepi64_epi32(0xff, _mm512_or_si512(low[0], ShiftLeft(low[1], 16))));
        packed += kPairOfA;
      });
    }
  }
}

void PackBFullIfma(int64_t n, int64_t k, const uint64_t* b, int64_t ldb, uint64_t* packed) {
  const __mmask8 masks[2] = {MaskOf(n), MaskOf(n - 8)};
  for (int64_t p = 0; p < k; p += 2, packed += kPairOfB) {
    __m512i low = _mm512_setzero_si512();
    Unroll<2>([&](auto of) TFE_BENCH_INLINE {
      const uint64_t* row = b + (p + of) * ldb;
      Unroll<2>([&](auto half) TFE_BENCH_INLINE {
        const __mmask8 mask = p + of < k ? masks[half] : 0;
        const __m512i words = _mm512_maskz_loadu_epi64(mask, row + 8 * half);
        uint64_t* to = packed + of * 2 * kNr + 8 * half;
        _mm512_store_si512(to, words);
        _mm512_store_si512(to + kNr, HighPart(words));
        low = _mm512_or_si512(low, ShiftLeft(LowPart(words), 32 * half + 16 * of));
      });
    });
    _mm512_store_si512(packed + 4 * kNr, low);
  }
}

void GemmBlockFullIfma(const GemmBlock& g) {
  using TileFunction = void (*)(const uint64_t*, const uint64_t*, int64_t, uint64_t*, int64_t, bool,
                                __mmask8, __mmask8);
  static constexpr TileFunction kTiles[] = {Tile<1>, Tile<2>, Tile<3>, Tile<4>,
                                            Tile<5>, Tile<6>, Tile<7>, Tile<8>};
  const int64_t panel = PanelRows(g.m), pairs = Ceil(g.k, 2);
  for (int64_t j = 0; j < g.n; j += kNr) {
    const uint64_t *b = g.b + j / kNr * g.b_panel, *a = g.a;
    for (int64_t i = 0; i < g.m; i += panel, a += pairs * kPairOfA) {
      const int64_t rows = g.m - i < panel ? g.m - i : panel;
      kTiles[rows - 1](a, b, pairs, g.c + i * g.ldc + j, g.ldc, g.accumulate, MaskOf(g.n - j),
                       MaskOf(g.n - j - 8));
    }
  }
}

}  // namespace internal
}  // namespace tfe_bench
