// Exponentials of shares: powers of two modulo 2^256 + 1 and modulo Mersenne primes.
//
// x = m - lam, so 2^(x log2 e) is a factor known to the dealer times one known to both evaluators.
// Each factor is 2^e * mantissa with a public-size mantissa, and multiplying by 2^e modulo
// N = 2^256 + 1 (or 2^q - 1) is a shift (or rotation), so that a product costs one long by short
// multiplication.  Integers throughout: two evaluators on two hosts must agree bit for bit.  No
// branch and no index depends on a value.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_MODULAR_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_MODULAR_H_

#include <cstdint>

namespace tfe_bench {

// round-to-floor of 2^(fraction / 2^64) * 2^62 up to a relative error of 2^-56, in [2^62, 2^63].
uint64_t Exp2Fraction(uint64_t fraction);

// The same with `bits` fractional bits, rounded: in [2^bits, 2^(bits+1)].
inline uint64_t Mantissa(uint64_t fraction, int bits) {
  return (Exp2Fraction(fraction) + (uint64_t{1} << (61 - bits))) >> (62 - bits);
}

// Residues modulo N = 2^256 + 1: five limbs, low first, canonical in [0, 2^256].
struct Residue {
  uint64_t limb[5];
};

// p * 2^e mod N for any 0 <= p < 2^320 and 0 <= e < 512.
Residue ShiftModN(const uint64_t p[5], uint32_t e);
// (a - b) mod N for canonical a and b < 2^256.
Residue SubtractModN(const Residue& a, const uint64_t b[4]);

// How one exponential is computed; all of it public.
struct ExpParameters {
  int limbs;              // of a ring element: Z_2^64 or Z_2^128
  uint64_t factor[2];     // log2(e) with as many fractional bits as below, low word first
  int offset;             // added to the exponent, so that it is never negative
  int mantissa;           // bits of each factor's mantissa
  int drop;               // bits to drop from the product: T
  int point;              // fractional bits of x * factor (Mersenne form only)
};

// ---- modulo N = 2^256 + 1: the exponent is the top 9 bits of x * factor, because 2 has order 512.

// The dealer, elements [begin, end): message = A - pad mod N, A = 2^offset * exp(-(l1 + l2)), in 4
// words each (the residue 2^256, which comes with probability 2^-256, goes as 0).
void ExpDealRange(const ExpParameters& p, const uint64_t* l1, const uint64_t* l2,
                  const uint64_t* pad, uint64_t* message, int64_t begin, int64_t end);
// An evaluator: y = floor(h / 2^T) at E1, -floor((N - h) / 2^T) at E2, h = share * exp(m) mod N.
void ExpShareRange(const ExpParameters& p, const uint64_t* m, const uint64_t* share, bool second,
                   uint64_t* y, int64_t begin, int64_t end);

// ---- ... times private bits, over Z_2^64.
//
// b e^x with b = o ^ beta is A[o] B: the evaluators know B = exp(m) and o, the dealer A = exp(-lam)
// and beta, and so both A[0] = beta A and A[1] = (1 - beta) A.  A residue of 0 times B is 0, whatever
// x is: an x outside of the exponential's range does no harm where b = 0.

constexpr int kSelectWords = 8;  // A[0] and A[1] in four words each

// The dealer, elements [begin, end): A[0] - pad, A[1] - pad' mod N.  beta is indexed by bits from
// element 0; l1, l2, pad and message start at element begin.
void ExpSelectDealRange(const ExpParameters& p, const uint64_t* beta, const uint64_t* l1,
                        const uint64_t* l2, const uint64_t* pad, uint64_t* message, int64_t begin,
                        int64_t end);
// An evaluator: the share of A[o], four words for each element, without a branch on o.
void ExpSelectRange(const uint64_t* masked_bits, const uint64_t* given, uint64_t* share, int64_t begin,
                    int64_t end);

// ---- modulo the Mersenne prime 2^61 - 1 (one limb) or 2^127 - 1 (two).

constexpr uint64_t kP61 = (uint64_t{1} << 61) - 1;

// Any word modulo 2^61 - 1, in [0, 2^61 - 1).
inline uint64_t Canonical61(uint64_t v) {
  v = (v & kP61) + (v >> 61);  // at most p + 7
  const uint64_t less = v - kP61;
  return less + (kP61 & -(less >> 63));
}

// before + sum_i r[i] v[i] modulo 2^61 - 1, of any words.
uint64_t InnerProduct61(uint64_t before, const uint64_t* r, const uint64_t* v, int64_t n);

// The dealer: message = A - pad mod p, A = 2^offset * exp(-(l1 + l2)) mod p; pad is taken mod p.
void PrimeDealRange(const ExpParameters& p, const uint64_t* l1, const uint64_t* l2,
                    const uint64_t* pad, uint64_t* message, int64_t begin, int64_t end);
// An evaluator: w = share * exp(m) mod p, y = floor(w / 2^T) at E1 and ceil(w / 2^T) at E2, and
// low = [w < p / 2] (0 or 1).
void PrimeShareRange(const ExpParameters& p, const uint64_t* m, const uint64_t* share, bool second,
                     uint64_t* y, uint64_t* low, int64_t begin, int64_t end);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_MODULAR_H_
