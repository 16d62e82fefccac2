// What gemm.cc asks of an instruction set. Only gemm*.cc and the tests include this.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_ISA_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_ISA_H_

#include <cstdint>
#include <functional>

namespace tfe_bench {
namespace internal {

// c[m,n] (+)= a[m,k] * b[k,n] on operands that fit the caches.
// a: element (i, p) is a[(i / mr) * a_panel + (i % mr) * a_row + p * a_col], so that one
//    description covers a row-major matrix (mr * lda, lda, 1) and packed panels of mr rows
//    (mr * k, 1, mr).
// b: element (p, j) is b[(j / nr) * b_panel + p * b_row + j % nr]: row major (nr, ldb) or packed
//    panels of nr columns (nr * k, nr).
// m, n and k are at least 1. No element outside the matrices is read, so packed panels need no
// padding.
struct GemmBlock {
  int64_t m, n, k;
  const uint64_t* a;
  int64_t a_panel, a_row, a_col;
  const uint64_t* b;
  int64_t b_panel, b_row;
  uint64_t* c;
  int64_t ldc;
  bool accumulate;
};

// The arguments of Gemm, with b or a source of it; of a dot product, b[n,k] transposed, vectorized
// along k: for few columns.
struct GemmArgs {
  int64_t m, n, k;
  const uint64_t* a;
  int64_t lda;
  const uint64_t* b;
  int64_t ldb;
  uint64_t* c;
  int64_t ldc;
  bool accumulate;
  const std::function<void(int64_t, int64_t, uint64_t*)>* source = nullptr;  // (a WordSource)
};

struct GemmIsa {
  const char* name;        // as in TFE_BENCH_ISA
  int bits;                // low bits of each word of c that are right
  int64_t mr, nr;          // register tile of `block`
  int64_t kc;              // rows of b per block, so that a panel of b stays in the L1 cache
  int64_t lanes;           // 64-bit words per vector
  int64_t macs_per_cycle;  // rough, for the cost estimate only
  void (*block)(const GemmBlock&);
  void (*dot)(const GemmArgs&);  // null: not worth it
  // Packs m rows of a, in panels of mr; null: a loop does.
  void (*pack_a)(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed) = nullptr;
  // Null: words are packed as they are, where they are used often enough. Else `block` takes packed
  // operands alone; this packs a panel of n <= nr columns of b. Each panel has mr rows or nr columns of
  // ceil(k / ku) * ku elements of packed_bytes.
  void (*pack_b)(int64_t n, int64_t k, const uint64_t* b, int64_t ldb, uint64_t* packed) = nullptr;
  int64_t ku = 1, packed_bytes = 8;
  int64_t b_bytes = int64_t{1} << 20;  // of b packed at a time: they stay in the L2 cache
};

void GemmBlockAvx2(const GemmBlock& g);
void GemmDotAvx2(const GemmArgs& g);
void GemmBlockAvx512(const GemmBlock& g);
void GemmDotAvx512(const GemmArgs& g);
void PackAAvx512(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed);
void GemmBlockIfma(const GemmBlock& g);
void GemmDotIfma(const GemmArgs& g);
void PackAIfma(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed);
void PackAFullIfma(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed);
void PackBFullIfma(int64_t n, int64_t k, const uint64_t* b, int64_t ldb, uint64_t* packed);
void GemmBlockFullIfma(const GemmBlock& g);
template <int kLimbs>
void PackAAmx(int64_t m, int64_t k, const uint64_t* a, int64_t lda, uint64_t* packed);
template <int kLimbs>
void PackBAmx(int64_t n, int64_t k, const uint64_t* b, int64_t ldb, uint64_t* packed);
template <int kLimbs>
void GemmBlockAmx(const GemmBlock& g);
void GemmBlockPortable(const GemmBlock& g);

inline constexpr GemmIsa kGemmPortable = {"portable", 64, 4, 8, 256, 1, 1, GemmBlockPortable, nullptr};
inline constexpr GemmIsa kGemmAvx2 = {"avx2", 64, 2, 8, 256, 4, 3, GemmBlockAvx2, GemmDotAvx2};
inline constexpr GemmIsa kGemmAvx512 = {"avx512", 64, 8, 24, 128, 8, 10, GemmBlockAvx512,
                                       GemmDotAvx512, PackAAvx512};
inline constexpr GemmIsa kGemmIfma = {"ifma", 52, 8, 24, 128, 8, 40, GemmBlockIfma, GemmDotIfma,
                                     PackAIfma};
inline constexpr GemmIsa kGemmFullIfma = {
    "ifma", 64, 8, 16, 64, 8, 16, GemmBlockFullIfma, GemmDotAvx512, PackAFullIfma, PackBFullIfma, 2, 18};

// Words as kLimbs bytes.
template <int kLimbs>
inline constexpr GemmIsa kGemmAmxLimbs = {
    "amx", 8 * kLimbs, 32, 16, 1024, 8, 1000 / (kLimbs * (kLimbs + 1)), GemmBlockAmx<kLimbs>, nullptr,
    PackAAmx<kLimbs>, PackBAmx<kLimbs>, 64, kLimbs,
    int64_t{1} << 22};
inline constexpr GemmIsa kGemmAmx[] = {kGemmAmxLimbs<1>, kGemmAmxLimbs<2>, kGemmAmxLimbs<3>,
                                       kGemmAmxLimbs<4>, kGemmAmxLimbs<5>, kGemmAmxLimbs<6>,
                                       kGemmAmxLimbs<7>, kGemmAmxLimbs<8>};

}  // namespace internal
}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_ISA_H_
