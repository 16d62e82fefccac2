#include <immintrin.h>

#include "protocols/kernels/core/gemm_isa.h"
#include "protocols/kernels/core/unroll.h"

// AVX2 has no 64-bit multiply. With a = a1 * 2^32 + a0 and b = b1 * 2^32 + b0,
//   a * b = a0 * b0 + 2^32 * (a0 * b1 + a1 * b0)  mod 2^64,
// and only the low 32 bits of the bracket count. VPMULUDQ gives a0 * b0; one VPMULLD of a with b
// whose halves are swapped gives both products of the bracket, each mod 2^32, side by side. Both
// are summed separately and joined once per tile, so a step costs two multiplications instead of three
// and neither operand has to be split when packing.

namespace tfe_bench {
namespace internal {
namespace {

constexpr int64_t kMr = kGemmAvx2.mr;
constexpr int64_t kNr = kGemmAvx2.nr;
constexpr int64_t kLanes = kGemmAvx2.lanes;

struct Sum {
  __m256i low;    // 64-bit sums of a0 * b0
  __m256i cross;  // 32-bit sums of a0 * b1 and a1 * b0
};

inline __m256i SwapHalves(__m256i x) { return _mm256_shuffle_epi32(x, 0xb1); }

inline void MultiplyAdd(__m256i a, __m256i b, __m256i b_swapped, Sum* sum) {
  sum->low = _mm256_add_epi64(sum->low, _mm256_mul_epu32(a, b));
  sum->cross = _mm256_add_epi32(sum->cross, _mm256_mullo_epi32(a, b_swapped));
}

inline __m256i Join(const Sum& sum) {
  const __m256i bracket = _mm256_add_epi32(sum.cross, SwapHalves(sum.cross));
  return _mm256_add_epi64(sum.low, _mm256_slli_epi64(bracket, 32));
}

// The first `count` of four lanes, 0 <= count <= 4.
inline __m256i TailMask(int64_t count) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_set_epi64x(3, 2, 1, 0));
}

// Masked moves are slow on some CPUs; kMasked keeps them out of full tiles.
template <bool kMasked>
inline __m256i Load(const uint64_t* p, __m256i mask) {
  if (kMasked) return _mm256_maskload_epi64(reinterpret_cast<const long long*>(p), mask);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

template <bool kMasked>
inline void Store(uint64_t* p, __m256i mask, __m256i x) {
  if (kMasked) {
    _mm256_maskstore_epi64(reinterpret_cast<long long*>(p), mask, x);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }
}

// A kM x (4 kN) tile of c; with kMasked its last vector has `tail` lanes.
template <int kM, int kN, bool kMasked>
void Tile(const GemmBlock& g, const uint64_t* a, const uint64_t* b, uint64_t* c, int64_t tail) {
  const __m256i mask = TailMask(kMasked ? tail : kLanes);
  const __m256i add = _mm256_set1_epi64x(g.accumulate ? -1 : 0);
  const int64_t a_row = g.a_row;
  const int64_t a_col = g.a_col;
  const int64_t b_row = g.b_row;
  const int64_t ldc = g.ldc;
  // An empty mask loads zeros: without a branch the sums keep their registers throughout.
  Sum sum[kM][kN];
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      const __m256i wanted = j < kN - 1 ? add : _mm256_and_si256(add, mask);
      sum[i][j].low = Load<true>(c + i * ldc + j * kLanes, wanted);
      sum[i][j].cross = _mm256_setzero_si256();
    });
  });
  int64_t p = g.k;  // at least 1
  do {
    __m256i bv[kN];
    __m256i b_swapped[kN];
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      bv[j] = Load<kMasked && j == kN - 1>(b + j * kLanes, mask);
      b_swapped[j] = SwapHalves(bv[j]);
    });
    Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
      const __m256i av = _mm256_set1_epi64x(static_cast<int64_t>(a[i * a_row]));
      Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
        MultiplyAdd(av, bv[j], b_swapped[j], &sum[i][j]);
      });
    });
    a += a_col;
    b += b_row;
  } while (--p > 0);
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      Store<kMasked && j == kN - 1>(c + i * ldc + j * kLanes, mask, Join(sum[i][j]));
    });
  });
}

// kM rows times the `columns` <= 8 columns of one panel.
template <int kM>
void Tiles(const GemmBlock& g, const uint64_t* a, const uint64_t* b, uint64_t* c,
           int64_t columns) {
  const int64_t tail = (columns - 1) % kLanes + 1;
  if (columns == kNr) {
    Tile<kM, 2, false>(g, a, b, c, tail);
  } else if (columns > kLanes) {
    Tile<kM, 2, true>(g, a, b, c, tail);
  } else if (columns == kLanes) {
    Tile<kM, 1, false>(g, a, b, c, tail);
  } else {
    Tile<kM, 1, true>(g, a, b, c, tail);
  }
}

// kM rows of a against kN rows of bt.
template <int kM, int kN>
void Dot(const GemmArgs& g, const uint64_t* a, const uint64_t* bt, uint64_t* c) {
  Sum sum[kM][kN];
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      sum[i][j].low = sum[i][j].cross = _mm256_setzero_si256();
    });
  });
  const auto step = [&](int64_t p, auto load) TFE_BENCH_INLINE {
    __m256i bv[kN];
    __m256i b_swapped[kN];
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      bv[j] = load(bt + j * g.ldb + p);
      b_swapped[j] = SwapHalves(bv[j]);
    });
    Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
      const __m256i av = load(a + i * g.lda + p);
      Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
        MultiplyAdd(av, bv[j], b_swapped[j], &sum[i][j]);
      });
    });
  };
  int64_t p = 0;
  for (; p + kLanes <= g.k; p += kLanes) {
    step(p, [](const uint64_t* x) TFE_BENCH_INLINE { return Load<false>(x, __m256i()); });
  }
  if (p < g.k) {
    const __m256i mask = TailMask(g.k - p);
    step(p, [mask](const uint64_t* x) TFE_BENCH_INLINE { return Load<true>(x, mask); });
  }
  Unroll<kM>([&](auto i) TFE_BENCH_INLINE {
    Unroll<kN>([&](auto j) TFE_BENCH_INLINE {
      alignas(32) uint64_t lane[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(lane), Join(sum[i][j]));
      const uint64_t total = (lane[0] + lane[1]) + (lane[2] + lane[3]);
      uint64_t* dst = c + i * g.ldc + j;
      *dst = g.accumulate ? *dst + total : total;
    });
  });
}

template <int kN>
void DotColumns(const GemmArgs& g, int64_t j) {
  int64_t i = 0;
  const uint64_t* bt = g.b + j * g.ldb;
  for (; i + 2 <= g.m; i += 2) Dot<2, kN>(g, g.a + i * g.lda, bt, g.c + i * g.ldc + j);
  if (i < g.m) Dot<1, kN>(g, g.a + i * g.lda, bt, g.c + i * g.ldc + j);
}

}  // namespace

void GemmBlockAvx2(const GemmBlock& g) {
  int64_t j = 0;
  if (g.m == 1 && g.b_panel == kNr) {  // one row: long stretches of b, which is read once
    for (; j + 4 * kLanes <= g.n; j += 4 * kLanes) {
      Tile<1, 4, false>(g, g.a, g.b + j, g.c + j, kLanes);
    }
  }
  for (; j < g.n; j += kNr) {
    const int64_t columns = g.n - j < kNr ? g.n - j : kNr;
    const uint64_t* b = g.b + j / kNr * g.b_panel;
    for (int64_t i = 0; i < g.m; i += kMr) {
      const uint64_t* a = g.a + i / kMr * g.a_panel;
      uint64_t* c = g.c + i * g.ldc + j;
      if (g.m - i >= kMr) {
        Tiles<kMr>(g, a, b, c, columns);
      } else {
        Tiles<1>(g, a, b, c, columns);
      }
    }
  }
}

void GemmDotAvx2(const GemmArgs& g) {
  int64_t j = 0;
  for (; j + 2 <= g.n; j += 2) DotColumns<2>(g, j);
  if (j < g.n) DotColumns<1>(g, j);
}

}  // namespace internal
}  // namespace tfe_bench
