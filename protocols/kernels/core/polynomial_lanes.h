// Polynomials of one masked value modulo 2^64 or less (polynomial.h), eight elements at a time.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_LANES_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_LANES_H_

#include <cstdint>

namespace tfe_bench {

constexpr int kMaxDegree = 24;  // of a factor
constexpr int kMaxLaneWords = 2 * kMaxDegree;

// Public: the parameters of a polynomial of one factor.
struct LanePlan {
  int bits, degree, modulus_bits, drop, record_words;
  int width[kMaxDegree + 1], offset[kMaxDegree + 1];  // of each power's fields
};

// Both do as MaskedPolynomial's Deal and Share, for whole groups of eight of `count` elements, and
// return how many that were.
struct LaneFunctions {
  int64_t (*deal)(const LanePlan& plan, const uint64_t* lam, int64_t count, uint64_t* records);
  // coefficients: [degree + 1]
  int64_t (*share)(const LanePlan& plan, const uint64_t* coefficients, bool first,
                   const uint64_t* m, int64_t count, const uint64_t* records, uint64_t* y);
};

const LaneFunctions* PolynomialAvx2();
const LaneFunctions* PolynomialAvx512();

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_LANES_H_
