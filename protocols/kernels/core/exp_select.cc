#include "protocols/kernels/core/exp_select.h"

namespace tfe_bench {

void ExpSelectDealRange(const ExpParameters& p, const uint64_t* beta, const uint64_t* l1,
                        const uint64_t* l2, const uint64_t* pad, uint64_t* message, int64_t begin,
                        int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = i - begin;
    const uint64_t x = (0 - (l1[at] + l2[at])) * p.factor[0];
    const uint64_t bit = 0 - (beta[i / 64] >> (i % 64) & 1);
    const uint64_t mantissa = Mantissa(x << 9, p.mantissa);
    const uint32_t exponent = (static_cast<uint32_t>(x >> 55) + p.offset) & 511;
    for (int o = 0; o < 2; ++o) {
      const uint64_t factor[5] = {mantissa & (o ? ~bit : bit), 0, 0, 0, 0};
      const int64_t to = kSelectWords * at + 4 * o;
      const Residue rest = SubtractModN(ShiftModN(factor, exponent), pad + to);
      for (int k = 0; k < 4; ++k) message[to + k] = rest.limb[k];
    }
  }
}

void ExpSelectRange(const uint64_t* opened, const uint64_t* given, uint64_t* share, int64_t begin,
                    int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t o = 0 - (opened[i / 64] >> (i % 64) & 1);
    const uint64_t* words = given + kSelectWords * (i - begin);
    for (int k = 0; k < 4; ++k) share[4 * (i - begin) + k] = (words[k] & ~o) | (words[k + 4] & o);
  }
}

}  // namespace tfe_bench
