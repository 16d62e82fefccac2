// Exponentials times private bits, modulo N = 2^256 + 1 (core/modular.h), over Z_2^64.
//
// b e^x with b = o ^ beta is A[o] B: the evaluators know B = exp(m) and o, the dealer A = exp(-lam)
// and beta, and so both A[0] = beta A and A[1] = (1 - beta) A.  A residue of 0 times B is 0, whatever
// x is: an x outside of the exponential's range does no harm where b = 0.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_EXP_SELECT_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_EXP_SELECT_H_

#include <cstdint>

#include "protocols/kernels/core/modular.h"

namespace tfe_bench {

constexpr int kSelectWords = 8;  // A[0] and A[1] in four words each

// The dealer, elements [begin, end): A[0] - pad, A[1] - pad' mod N.  beta is indexed by bits from
// element 0; l1, l2, pad and message start at element begin.
void ExpSelectDealRange(const ExpParameters& p, const uint64_t* beta, const uint64_t* l1,
                        const uint64_t* l2, const uint64_t* pad, uint64_t* message, int64_t begin,
                        int64_t end);
// An evaluator: the share of A[o], four words for each element, without a branch on o.
void ExpSelectRange(const uint64_t* opened, const uint64_t* given, uint64_t* share, int64_t begin,
                    int64_t end);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_EXP_SELECT_H_
