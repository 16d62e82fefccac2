// The tiles of gemm_avx512.cc and gemm_ifma.cc, which define kIsa and MultiplyAdd.
#include <immintrin.h>

#include "protocols/kernels/core/transpose_512.inl"
#include "protocols/kernels/core/unroll.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr int64_t kMr = kIsa.mr;
constexpr int64_t kNr = kIsa.nr;
constexpr int64_t kLanes = kIsa.lanes;

// A kM x (8 kN) tile of c in registers; `tail` masks the last vector of each row. a_row and a_col
// are compile-time constants for packed panels, where eight address registers would be a waste.
template <int kM, int kN, bool kPackedA>
void Tile(const GemmBlock& g, const uint64_t* a, const uint64_t* b, uint64_t* c, __mmask8 tail) {
  const int64_t a_row = kPackedA ? 1 : g.a_row;
  const int64_t a_col = kPackedA ? kMr : g.a_col;
  const int64_t b_row = g.b_row;
  const int64_t ldc = g.ldc;
  // An empty mask loads zeros: without a branch the sums keep their registers throughout.
  const __mmask8 add = static_cast<__mmask8>(g.accumulate ? 0xff : 0);
  __m512i sum[kM][kN];
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      const __mmask8 mask = static_cast<__mmask8>(j < kN - 1 ? add : add & tail);
      sum[i][j] = _mm512_maskz_loadu_epi64(mask, c + i * ldc + j * kLanes);
    });
  });
  int64_t p = g.k;  // at least 1
  do {
    __m512i bv[kN];
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      bv[j] = j < kN - 1 ? _mm512_loadu_si512(b + j * kLanes)
                         : _mm512_maskz_loadu_epi64(tail, b + j * kLanes);
    });
    Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
      const __m512i av = _mm512_set1_epi64(static_cast<int64_t>(a[i * a_row]));
      Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
        sum[i][j] = MultiplyAdd(sum[i][j], av, bv[j]);
      });
    });
    a += a_col;
    b += b_row;
  } while (--p > 0);
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      const __mmask8 mask = j < kN - 1 ? static_cast<__mmask8>(0xff) : tail;
      _mm512_mask_storeu_epi64(c + i * ldc + j * kLanes, mask, sum[i][j]);
    });
  });
}

using TileFunction = void (*)(const GemmBlock&, const uint64_t*, const uint64_t*, uint64_t*,
                              __mmask8);

// Of 1 to 8 rows.
template <int kN, bool kPackedA>
constexpr TileFunction kTiles[] = {Tile<1, kN, kPackedA>, Tile<2, kN, kPackedA>,
                                   Tile<3, kN, kPackedA>, Tile<4, kN, kPackedA>,
                                   Tile<5, kN, kPackedA>, Tile<6, kN, kPackedA>,
                                   Tile<7, kN, kPackedA>, Tile<8, kN, kPackedA>};

template <bool kPackedA>
TileFunction TileFor(int64_t rows, int64_t vectors) {
  return (vectors == 1   ? kTiles<1, kPackedA>
          : vectors == 2 ? kTiles<2, kPackedA>
                         : kTiles<3, kPackedA>)[rows - 1];
}

__mmask8 TailMask(int64_t columns) {
  const int64_t rest = (columns - 1) % kLanes + 1;
  return static_cast<__mmask8>((1u << rest) - 1);
}

// Few rows and an unpacked b: b is read once, so long contiguous stretches of its rows matter
// more than reuse. Returns the number of columns done.
int64_t WideColumns(const GemmBlock& g) {
  if (g.m > 4 || g.b_panel != kNr) return 0;
  const int64_t vectors = g.m == 1 ? 16 : g.m == 2 ? 8 : 6;
  const TileFunction tile = g.m == 1   ? Tile<1, 16, false>
                            : g.m == 2 ? Tile<2, 8, false>
                            : g.m == 3 ? Tile<3, 6, false>
                                       : Tile<4, 6, false>;
  int64_t j = 0;
  for (; j + vectors * kLanes <= g.n; j += vectors * kLanes) tile(g, g.a, g.b + j, g.c + j, 0xff);
  return j;
}

// The sum of the lanes. _mm512_reduce_add_epi64 says the same, but with the unmasked extractions
// whose undefined operand GCC 12 warns about.
inline uint64_t AddLanes(__m512i x) {
  const __m256i four = _mm256_add_epi64(_mm512_maskz_extracti64x4_epi64(0xff, x, 0),
                                        _mm512_maskz_extracti64x4_epi64(0xff, x, 1));
  const __m128i two =
      _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(two)) +
         static_cast<uint64_t>(_mm_extract_epi64(two, 1));
}

// kM rows of a against kN rows of bt.
template <int kM, int kN>
void Dot(const GemmArgs& g, const uint64_t* a, const uint64_t* bt, uint64_t* c) {
  __m512i sum[kM][kN];
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE { sum[i][j] = _mm512_setzero_si512(); });
  });
  for (int64_t p = 0; p < g.k; p += kLanes) {
    const __mmask8 mask = g.k - p < kLanes ? TailMask(g.k) : static_cast<__mmask8>(0xff);
    __m512i av[kM];
    Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
      av[i] = _mm512_maskz_loadu_epi64(mask, a + i * g.lda + p);
    });
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      const __m512i bv = _mm512_maskz_loadu_epi64(mask, bt + j * g.ldb + p);
      Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
        sum[i][j] = MultiplyAdd(sum[i][j], av[i], bv);
      });
    });
  }
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      uint64_t* dst = c + i * g.ldc + j;
      const uint64_t total = AddLanes(sum[i][j]);
      *dst = g.accumulate ? *dst + total : total;
    });
  });
}

template <int kN>
void DotColumns(const GemmArgs& g, const uint64_t* bt, uint64_t* c) {
  int64_t i = 0;
  for (; i + 4 <= g.m; i += 4) Dot<4, kN>(g, g.a + i * g.lda, bt, c + i * g.ldc);
  for (; i < g.m; ++i) Dot<1, kN>(g, g.a + i * g.lda, bt, c + i * g.ldc);
}

void PackPanels(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed) {
  static_assert(kMr == 8);
  for (int64_t i = 0; i < m; i += kMr, packed += kMr * k) {
    const int64_t last = m - i < kMr ? m - i - 1 : kMr - 1;  // repeated below it
    for (int64_t p = 0; p < k; p += kLanes) {
      const __mmask8 mask = MaskOf(k - p);
      __m512i v[kMr];
      Unroll<kMr>([&](auto r) TFE_BENCH_INLINE {
        v[r] = _mm512_maskz_loadu_epi64(mask, a + (i + (r < last ? r : last)) * lda + p);
      });
      Transpose(v);
      Unroll<kLanes>([&](auto q) TFE_BENCH_INLINE {
        if (q < k - p) _mm512_storeu_si512(packed + (p + q) * kMr, v[q]);
      });
    }
  }
}

void MultiplyBlock(const GemmBlock& g) {
  const bool packed_a = g.a_row == 1 && g.a_col == kMr;
  // Columns outside, rows inside: the panel of b stays in L1, the panels of a stream from L2.
  for (int64_t j = WideColumns(g); j < g.n;) {
    const int64_t columns = g.n - j < kNr ? g.n - j : kNr;
    const int64_t vectors = (columns + kLanes - 1) / kLanes;
    const uint64_t* b = g.b + j / kNr * g.b_panel + j % kNr;
    for (int64_t i = 0; i < g.m; i += kMr) {
      const int64_t rows = g.m - i < kMr ? g.m - i : kMr;
      const TileFunction tile =
          packed_a ? TileFor<true>(rows, vectors) : TileFor<false>(rows, vectors);
      tile(g, g.a + i / kMr * g.a_panel, b, g.c + i * g.ldc + j, TailMask(columns));
    }
    j += columns;
  }
}

void MultiplyDots(const GemmArgs& g) {
  constexpr int64_t kMost = 6;  // 4 x 6 sums leave eight registers for operands
  using Columns = void (*)(const GemmArgs&, const uint64_t*, uint64_t*);
  static constexpr Columns kColumns[kMost] = {DotColumns<1>, DotColumns<2>, DotColumns<3>,
                                              DotColumns<4>, DotColumns<5>, DotColumns<6>};
  const int64_t groups = (g.n + kMost - 1) / kMost;
  int64_t j = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t columns = (g.n - j) / (groups - group);
    kColumns[columns - 1](g, g.b + j * g.ldb, g.c + j);
    j += columns;
  }
}

}  // namespace
}  // namespace internal
}  // namespace tfe_bench
