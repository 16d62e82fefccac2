// Polynomials of one to three masked values in one exchange.
//
// A signed x with |x| < 2^(k-2), masked as x = m - lam mod 2^k, is as an integer
//
//   x = M + N_b,   M = (m + 2^(k-2) mod 2^(k-1)) - 2^(k-2),   N_b = -signed_k(lam + b 2^(k-1)),
//
// where b is the top bit of m + 2^(k-2) mod 2^k.  The evaluators know M and b, the dealer N_0 and
// N_1.  A polynomial p(x) = sum_j Q_j(M) N_b^j has public Q_j, so that additive shares mod 2^L of
// the powers N_0^j and N_1^j give the evaluators additive shares of p(x) mod 2^L without a message;
// floor and ceil of these by 2^drop add up to a stochastic rounding of p(x) / 2^drop.
//
// Where Q_j(M) is small, the low s bits of N_b^j do not matter: the dealer rounds them away and
// deals the rest in a field of L - s bits.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "protocols/kernels/core/polynomial_lanes.h"

namespace tfe_bench {

constexpr int kMaxFactors = 3, kMaxTerms = 64;

class MaskedPolynomial {
 public:
  // All public, equal at the three parties.
  std::vector<int> bits;     // k of each factor, 3 to 62
  std::vector<int> degrees;  // of each factor, at least 1
  // Of the product of the factors' powers, the last factor's exponent fastest: bits of the field
  // that deals it, 0 for a term that is not needed.
  std::vector<int> widths;
  int modulus_bits = 0;  // L
  int drop = 0;
  std::vector<uint64_t> coefficients;  // [terms][limbs], mod 2^(64 limbs); the evaluators only

  // Fills in what follows from the above; the text of what is wrong, or nothing.
  std::string Prepare(bool with_coefficients);

  int factors() const { return static_cast<int>(bits.size()); }
  int limbs() const { return (modulus_bits + 63) / 64; }
  int terms() const { return terms_; }
  int record_words() const { return record_words_; }  // of one element's dealt fields

  // D: records for elements [begin, end).  lam[i] are the words of factor i; records hold the mask
  // for element begin and up, and are replaced by value - mask, field by field.  Bits that belong
  // to no field stay mask.
  void Deal(const uint64_t* const* lam, int64_t begin, int64_t end, uint64_t* records) const;

  // E1 (first) and E2: shares y of p / 2^drop, right mod 2^(L - drop); m[i] are the words of factor
  // i, records the dealt fields of element begin and up.
  void Share(bool first, const uint64_t* const* m, int64_t begin, int64_t end,
             const uint64_t* records, uint64_t* y) const;

 private:
  struct Term {
    int exponent[kMaxFactors];
    int offset;    // of the first variant's field; variants follow each other
    int variants;  // 2^(factors with exponent > 0)
  };
  template <int n>
  void DealWords(const uint64_t* const* lam, int64_t begin, int64_t end, uint64_t* records) const;
  template <int n>
  void ShareWords(bool first, const uint64_t* const* m, int64_t begin, int64_t end,
                  const uint64_t* records, uint64_t* y) const;

  LanePlan lanes_ = {};
  const LaneFunctions* lane_functions_ = nullptr;  // where several elements at a time are possible
  int terms_ = 0, record_words_ = 0;
  int stride_[kMaxFactors] = {};
  std::vector<Term> term_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_POLYNOMIAL_H_
