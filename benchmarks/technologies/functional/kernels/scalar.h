// Integers modulo l = 2^252 + 27742317777372353535851937790883648493, the order of the group, as
// four words, low first.  All in constant time but for what is said to be public.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_SCALAR_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_SCALAR_H_

#include <cstdint>

namespace tfe_bench {
namespace curve {

struct Scalar {
  uint64_t word[4];
};

constexpr Scalar kOrder = {{0x5812631a5cf5d3ed, 0x14def9dea2f79cd6, 0, 0x1000000000000000}};

// Any eight words modulo l.
Scalar Reduce(const uint64_t wide[8]);
// Of 32 bytes, little endian, whatever they are.
Scalar ScalarFrom(const uint8_t in[32]);
// Whether 32 bytes are below l.
bool IsReduced(const uint8_t in[32]);
// a b + c.
Scalar MulAdd(const Scalar& a, const Scalar& b, const Scalar& c);
// sum of y[j] s[index[j]] for public y (|y| <= 2^62), index and count (below 2^32).
Scalar InnerProduct(const uint8_t* s, const int32_t* index, const int64_t* y, int64_t count);
// k' below l with sum over j < 256 of (2 k'_j - 1) 2^j = k modulo l: all digits are 1 or -1
// (Hamburg, "Fast and compact elliptic-curve cryptography", 2012, section 3.3).
Scalar SignedBits(const Scalar& k);

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_SCALAR_H_
