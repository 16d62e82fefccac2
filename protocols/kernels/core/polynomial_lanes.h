// Polynomials of one masked value modulo 2^64 or less (polynomial.h), eight elements at a time.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_LANES_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_LANES_H_

#include <cstdint>

namespace tfe_bench {

constexpr int kLanes = 8;
constexpr int kMaxLaneDegree = 24, kMaxLaneWords = 2 * kMaxLaneDegree;

// Public: what MaskedPolynomial knows of a polynomial of one factor.
struct LanePlan {
  int bits, degree, modulus_bits, drop, record_words;
  int width[kMaxLaneDegree + 1], offset[kMaxLaneDegree + 1];  // of each power's fields
  const uint64_t* coefficients;                                // [degree + 1]
};

// Both do as MaskedPolynomial's Deal and Share for the first count - count % kLanes elements.
struct LaneFunctions {
  void (*deal)(const LanePlan& plan, const uint64_t* lam, int64_t count, uint64_t* records);
  void (*share)(const LanePlan& plan, bool first, const uint64_t* m, int64_t count,
                const uint64_t* records, uint64_t* y);
};

const LaneFunctions* PolynomialAvx2();
const LaneFunctions* PolynomialAvx512();

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_LANES_H_
