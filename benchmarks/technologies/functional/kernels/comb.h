// Multiplication of public points by secret numbers, in constant time: no branch, no index and no
// count depends on the number (Lim and Lee, CRYPTO 1994; all digits 1 or -1 as in Hamburg, 2012).
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_COMB_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_COMB_H_

#include <cstdint>

#include "benchmarks/technologies/functional/kernels/point.h"
#include "benchmarks/technologies/functional/kernels/scalar.h"

namespace tfe_bench {
namespace curve {

constexpr int kCombs = 8, kTeeth = 4, kSpacing = 8, kEntries = 1 << (kTeeth - 1);
constexpr int kSteps = kCombs * kSpacing;

// Tooth i of comb c holds bit (c kTeeth + i) kSpacing + u of a number at step u.  Entry j of a comb
// is the sum of its teeth for digits 1 at the top tooth and, below, at the set bits of j.
struct Comb {
  Affine entry[kCombs][kEntries];
};

// Which entry each step takes, and all ones where its opposite; as secret as the number.
struct Digits {
  uint64_t entry[kSteps], negative[kSteps];
};

Comb MakeComb(const Point& p);
Digits DigitsOf(const Scalar& k);
// k p for the comb of p and the digits of k.
Point Multiply(const Comb& comb, const Digits& digits);

// The comb of half of the base point: what EncodeDoubles encodes, is doubled again.
const Comb& HalfBaseComb();

// p + m (half of the base point) for |m| < 2^(4 windows - 1), windows up to kWindows being public.
constexpr int kWindows = 15;
Point AddSmall(const Point& p, int64_t m, int windows);

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_COMB_H_
