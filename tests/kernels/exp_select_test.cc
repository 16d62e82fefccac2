// The chosen factor is the exponential's, the other one is 0, and both are padded.
#include "protocols/kernels/core/modular.h"

#include <cstdint>
#include <random>
#include <vector>

#include "tests/kernels/check.h"

using namespace tfe_bench;

TEST(one_of_the_two_factors_is_that_of_the_exponential) {
  std::mt19937_64 random(1);
  ExpParameters p{1, {random(), 0}, 156, 30, 192, 0};
  constexpr int n = 130;
  std::vector<uint64_t> beta((n + 63) / 64), l1(n), l2(n), pad(8 * n), message(8 * n);
  for (auto* v : {&beta, &l1, &l2, &pad}) {
    for (auto& word : *v) word = random();
  }
  // as a kernel calls it: in runs, with the bits counted from the first element
  for (int begin = 0; begin < n; begin += 48) {
    const int end = begin + 48 < n ? begin + 48 : n;
    ExpSelectDealRange(p, beta.data(), l1.data() + begin, l2.data() + begin, pad.data() + 8 * begin,
                       message.data() + 8 * begin, begin, end);
  }
  for (int i = 0; i < n; ++i) {
    const int chosen = beta[i / 64] >> (i % 64) & 1 ? 0 : 1;
    uint64_t expected[4];
    ExpDealRange(p, &l1[i], &l2[i], &pad[8 * i + 4 * chosen], expected, 0, 1);
    const Residue zero = SubtractModN(Residue{}, &pad[8 * i + 4 * (1 - chosen)]);
    for (int k = 0; k < 4; ++k) {
      CHECK_EQ(message[8 * i + 4 * chosen + k], expected[k]);
      CHECK_EQ(message[8 * i + 4 * (1 - chosen) + k], zero.limb[k]);
    }
  }
}

TEST(the_opened_bit_takes_one_of_the_two) {
  std::mt19937_64 random(2);
  constexpr int n = 70;
  std::vector<uint64_t> masked_bits(2), given(8 * n), share(4 * n);
  for (auto* v : {&masked_bits, &given}) {
    for (auto& word : *v) word = random();
  }
  ExpSelectRange(masked_bits.data(), given.data(), share.data(), 0, n);
  for (int i = 0; i < n; ++i) {
    const int o = masked_bits[i / 64] >> (i % 64) & 1;
    for (int k = 0; k < 4; ++k) CHECK_EQ(share[4 * i + k], given[8 * i + 4 * o + k]);
  }
}
