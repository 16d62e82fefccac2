// Products by AMX int8. A word is kLimbs unsigned bytes, and a product the sum over i + j < kLimbs of
// 2^(8 (i + j)) times limb i of a times limb j of b. All pairs of one i + j share a sum of 32 bits:
// exact for i + j < 4 up to a depth of 16,512 (4 pairs of 255^2), of which kc allows 1,024; from
// i + j = 4 on no more than its 32 bits count.
//
// A piece of c has 2 x TileRows rows and 16 columns. Two neighbouring sums are computed at a time, in
// four tiles for the whole depth. Limbs of b slide through two tiles: limb i of a meets limb s - i
// of b in sum s, and in sum s + 1 the limb that sum s needed one step before.
// Each block loads the configuration of the tiles and releases them at its end, so that no thread
// is switched with 8 KB of tiles.
//
// The tile instructions are assembly: it takes the numbers of tiles from templates, and its order
// among the stores of operands is fixed, which GCC 12's intrinsics do not promise.
#include <immintrin.h>

#include "protocols/kernels/core/gemm_isa.h"
#include "protocols/kernels/core/transpose_512.inl"
#include "protocols/kernels/core/unroll.h"
#include "protocols/kernels/core/vec.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr int64_t kMr = kGemmAmx[0].mr;
constexpr int64_t kNr = kGemmAmx[0].nr;
constexpr int64_t kDepth = kGemmAmx[0].ku;  // of one tile, and bytes of its rows
constexpr int64_t kLine = 64;
constexpr int64_t kTileBytes = 16 * kLine;

using SumVec = uint32_t __attribute__((vector_size(64), may_alias));

enum Tile { kSums = 0, kA = 4, kB = 6 };

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles of sums and of a have `rows` rows, those of b 16.
void LoadConfig(int64_t rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kLine;
    config.rows[tile] = tile < kB ? static_cast<uint8_t>(rows) : 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

void ReleaseTiles() { asm volatile("tilerelease"); }

template <int kTile>
inline TFE_BENCH_INLINE void ClearTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

template <int kTile>
inline TFE_BENCH_INLINE void LoadTile(const uint8_t* from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(kLine), "i"(kTile) : "memory");
}

template <int kTile>
inline TFE_BENCH_INLINE void StoreTile(uint8_t* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(kLine), "i"(kTile) : "memory");
}

template <int kSum, int kOfA, int kOfB>
inline TFE_BENCH_INLINE void AddProduct() {
  asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kOfA), "i"(kOfB));
}

inline int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of each of the two tiles of a panel of a: 49 rows are four tiles of 13.
inline int64_t TileRows(int64_t m) { return Ceil(m, 2 * Ceil(m, kMr)); }

// Transposes 8 x 8 bytes.
alignas(64) constexpr uint8_t kBytes8x8[64] = {
    0, 8,  16, 24, 32, 40, 48, 56, 1, 9,  17, 25, 33, 41, 49, 57, 2, 10, 18, 26, 34, 42,
    50, 58, 3, 11, 19, 27, 35, 43, 51, 59, 4, 12, 20, 28, 36, 44, 52, 60, 5, 13, 21, 29,
    37, 45, 53, 61, 6, 14, 22, 30, 38, 46, 54, 62, 7, 15, 23, 31, 39, 47, 55, 63};

// (Intrinsics without a mask have an undefined operand, about which GCC 12 warns.)
inline TFE_BENCH_INLINE __m512i Permute(__m512i places, __m512i bytes) {
  return _mm512_maskz_permutexvar_epi8(~__mmask64{0}, places, bytes);
}

// The 64 words of eight vectors -> limb l of all, in order, in vector l < kLimbs.
template <int kLimbs>
inline TFE_BENCH_INLINE void SplitLimbs(__m512i (&v)[8]) {
  const __m512i by_limb = _mm512_load_si512(kBytes8x8);
  Unroll<8>([&](auto i) TFE_BENCH_INLINE { v[i] = Permute(by_limb, v[i]); });
  Transpose(v);
}

// Sum kSum and, unless it is the last one, its neighbour, over the whole depth.
template <int kLimbs, int kSum>
inline TFE_BENCH_INLINE void SumLimbs(int64_t steps, int64_t rows, const uint8_t* a,
                                      const uint8_t* b, uint8_t* sums) {
  constexpr bool kPair = kSum + 1 < kLimbs;
  const int64_t half = rows * kLine;
  Unroll<4>([&](auto i) TFE_BENCH_INLINE { ClearTile<kSums + i>(); });
  for (; steps > 0; --steps, a += kLimbs * 2 * half, b += kLimbs * kTileBytes) {
    if constexpr (kPair) LoadTile<kB + 1>(b + (kSum + 1) * kTileBytes);
    Unroll<kSum + 1 + kPair>([&](auto i) TFE_BENCH_INLINE {
      // The tile of limb kSum - i of b; the other one has limb kSum + 1 - i.
      constexpr int kNow = kB + i % 2, kBefore = kB + 1 - i % 2;
      LoadTile<kA>(a + i * 2 * half);
      LoadTile<kA + 1>(a + i * 2 * half + half);
      if constexpr (i <= kSum) {
        LoadTile<kNow>(b + (kSum - i) * kTileBytes);
        // A sum alone has four tiles as well: the next addition does not wait for the last one.
        constexpr int kTo = kPair ? kSums : kSums + 2 * (i % 2);
        AddProduct<kTo, kA, kNow>();
        AddProduct<kTo + 1, kA + 1, kNow>();
      }
      if constexpr (kPair) {
        AddProduct<kSums + 2, kA, kBefore>();
        AddProduct<kSums + 3, kA + 1, kBefore>();
      }
    });
  }
  Unroll<4>([&](auto i) TFE_BENCH_INLINE { StoreTile<kSums + i>(sums + i * half); });
}

// c from the sums of each of its rows: `plane` words from one sum to the next, columns c and c + 8
// side by side. An odd number of limbs leaves two halves of the last sum.
template <int kLimbs, bool kAdd>
void JoinSums(const GemmBlock& g, int64_t rows, int64_t columns, int64_t plane,
              const uint32_t* sums, uint64_t* c) {
  constexpr int kPlanes = kLimbs + kLimbs % 2, kExact = kPlanes < 4 ? kPlanes : 4;
  constexpr uint64_t kLow = 0xffffffff;
  const int64_t ldc = g.ldc;
  const __mmask8 first_mask = MaskOf(columns), second_mask = MaskOf(columns - 8);
  for (int64_t i = 0; i < rows; ++i, c += ldc, sums += 16) {
    Vec first = {}, second = {};
    if constexpr (kAdd) {
      first = (Vec)_mm512_maskz_loadu_epi64(first_mask, c);
      second = (Vec)_mm512_maskz_loadu_epi64(second_mask, c + 8);
    }
    Unroll<kExact>([&](auto s) TFE_BENCH_INLINE {
      constexpr int kShift = 8 * (s < kLimbs ? s : s - 1);
      const Vec sum = *reinterpret_cast<const Vec*>(sums + s * plane);
      first += (sum & kLow) << kShift;
      second += (sum >> 32) << kShift;
    });
    if constexpr (kPlanes > kExact) {
      SumVec high = {};
      Unroll<kPlanes - kExact>([&](auto s) TFE_BENCH_INLINE {
        constexpr int kShift = 8 * (4 + s < kLimbs ? s : s - 1);
        high += *reinterpret_cast<const SumVec*>(sums + (4 + s) * plane) << kShift;
      });
      first += (Vec)high << 32;
      second += (Vec)high & ~kLow;
    }
    _mm512_mask_storeu_epi64(c, first_mask, (__m512i)first);
    _mm512_mask_storeu_epi64(c + 8, second_mask, (__m512i)second);
  }
}

}  // namespace

template <int kLimbs>
void PackAAmx(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed) {
  const int64_t panel = 2 * TileRows(m);
  uint8_t* out = reinterpret_cast<uint8_t*>(packed);
  for (int64_t i = 0; i < m; i += panel) {
    const int64_t rows = m - i < panel ? m - i : panel;
    for (int64_t p = 0; p < k; p += kDepth, out += kLimbs * panel * kLine) {
      for (int64_t r = 0; r < rows; ++r) {
        const uint64_t* from = a + (i + r) * lda + p;
        __m512i v[8];
        Unroll<8>([&](auto x) TFE_BENCH_INLINE {
          v[x] = _mm512_maskz_loadu_epi64(MaskOf(k - p - 8 * x), from + 8 * x);
        });
        SplitLimbs<kLimbs>(v);
        Unroll<kLimbs>([&](auto l) TFE_BENCH_INLINE {
          _mm512_store_si512(out + (l * panel + r) * kLine, v[l]);
        });
      }
    }
  }
}

template <int kLimbs>
void PackBAmx(int64_t n, int64_t k, const uint64_t* b, int64_t ldb, uint64_t* packed) {
  // Piece 4 h + r of eight bytes: columns 8 h and on of row r, of four rows.
  const __m512i by_column = _mm512_load_si512(kBytes8x8);
  const __mmask8 masks[2] = {MaskOf(n), MaskOf(n - 8)};
  uint8_t* out = reinterpret_cast<uint8_t*>(packed);
  for (int64_t p = 0; p < k; p += kDepth, out += kLimbs * kTileBytes) {
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t row = p + 4 * r;
      __m512i v[8];
      Unroll<8>([&](auto x) TFE_BENCH_INLINE {
        constexpr int kHalf = x / 4, kRow = x % 4;
        const __mmask8 mask = row + kRow < k ? masks[kHalf] : 0;
        v[x] = _mm512_maskz_loadu_epi64(mask, b + (row + kRow) * ldb + 8 * kHalf);
      });
      SplitLimbs<kLimbs>(v);
      Unroll<kLimbs>([&](auto l) TFE_BENCH_INLINE {
        _mm512_store_si512(out + l * kTileBytes + r * kLine,
                           Permute(by_column, v[l]));
      });
    }
  }
}

template <int kLimbs>
void GemmBlockAmx(const GemmBlock& g) {
  constexpr int kGroups = (kLimbs + 1) / 2;
  const int64_t rows = TileRows(g.m), panel = 2 * rows, steps = Ceil(g.k, kDepth);
  alignas(64) uint8_t sums[2 * kGroups * 2 * kTileBytes];
  LoadConfig(rows);
  for (int64_t j = 0; j < g.n; j += kNr) {
    const uint8_t* b = reinterpret_cast<const uint8_t*>(g.b + j / kNr * g.b_panel);
    const uint8_t* a = reinterpret_cast<const uint8_t*>(g.a);
    for (int64_t i = 0; i < g.m; i += panel, a += steps * kLimbs * panel * kLine) {
      Unroll<kGroups>([&](auto s) TFE_BENCH_INLINE {
        SumLimbs<kLimbs, 2 * s>(steps, rows, a, b, sums + s * 2 * panel * kLine);
      });
      (g.accumulate ? JoinSums<kLimbs, true> : JoinSums<kLimbs, false>)(
          g, g.m - i < panel ? g.m - i : panel, g.n - j, panel * 16,
          reinterpret_cast<const uint32_t*>(sums), g.c + i * g.ldc + j);
    }
  }
  ReleaseTiles();
}

#define TFE_BENCH_LIMBS(n)                                                                    \
  template void PackAAmx<n>(int64_t, int64_t, const uint64_t*, int64_t, uint64_t*);           \
  template void PackBAmx<n>(int64_t, int64_t, const uint64_t*, int64_t, uint64_t*);           \
  template void GemmBlockAmx<n>(const GemmBlock&);
TFE_BENCH_LIMBS(1)
TFE_BENCH_LIMBS(2)
TFE_BENCH_LIMBS(3)
TFE_BENCH_LIMBS(4)
TFE_BENCH_LIMBS(5)
TFE_BENCH_LIMBS(6)
TFE_BENCH_LIMBS(7)
TFE_BENCH_LIMBS(8)
#undef TFE_BENCH_LIMBS

}  // namespace internal
}  // namespace tfe_bench
