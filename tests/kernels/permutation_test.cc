#include "protocols/kernels/core/permutation.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tests/kernels/check.h"

namespace {

using tfe_bench::AesKey;

AesKey TestKey(uint64_t seed) {
  uint8_t bytes[16] = {};
  std::memcpy(bytes, &seed, sizeof(seed));
  AesKey key;
  tfe_bench::ExpandAesKey(bytes, &key);
  return key;
}

std::vector<int32_t> Draw(const AesKey& key, uint64_t hi, uint64_t lo, int64_t n) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  tfe_bench::RandomPermutation(key, hi, lo, n, out.data());
  return out;
}

bool IsPermutation(const std::vector<int32_t>& perm) {
  std::vector<bool> seen(perm.size(), false);
  for (const int32_t p : perm) {
    if (p < 0 || static_cast<size_t>(p) >= perm.size() || seen[p]) return false;
    seen[p] = true;
  }
  return true;
}

}  // namespace

TEST(EveryOutputIsAPermutation) {
  const AesKey key = TestKey(1);
  for (int64_t n = 0; n <= 300; ++n) CHECK(IsPermutation(Draw(key, 0, 1000 * n, n)));
  for (const int64_t n : {1023, 1024, 1025, 4097, 100003, 1 << 20}) {
    CHECK(IsPermutation(Draw(key, 7, 0, n)));
  }
}

TEST(SameKeyAndCounterGiveTheSamePermutation) {
  CHECK(Draw(TestKey(2), 3, 4, 5000) == Draw(TestKey(2), 3, 4, 5000));
}

TEST(KeyAndCounterEachChangeThePermutation) {
  const std::vector<int32_t> base = Draw(TestKey(2), 3, 4, 1000);
  CHECK(base != Draw(TestKey(3), 3, 4, 1000));
  CHECK(base != Draw(TestKey(2), 4, 4, 1000));
  CHECK(base != Draw(TestKey(2), 3, uint64_t{1} << 36, 1000));
}

// The definition, one word at a time: batches and refills must not change what is drawn, or two
// parties with different builds would shuffle differently.
TEST(MatchesWordByWordFisherYates) {
  const AesKey key = TestKey(5);
  for (const int64_t n : {2, 3, 64, 65, 66, 5000, 70001}) {
    std::vector<int32_t> want(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) want[i] = static_cast<int32_t>(i);
    uint32_t words[4];
    uint64_t used = 0;
    for (int64_t i = n - 1; i > 0;) {
      if (used % 4 == 0) {
        tfe_bench::AesCtr(key, 9, 100 + used / 4, 1, reinterpret_cast<uint8_t*>(words));
      }
      const uint64_t range = static_cast<uint64_t>(i) + 1;
      const uint64_t product = words[used++ % 4] * range;
      if ((product & 0xffffffff) < (uint64_t{1} << 32) % range) continue;
      std::swap(want[i], want[product >> 32]);
      --i;
    }
    CHECK(Draw(key, 9, 100, n) == want);
  }
}

// Expected 10000 each, standard deviation 91: the bounds are 5.5 of them wide.
TEST(AllSixPermutationsOfThreeAreEquallyFrequent) {
  std::map<std::vector<int32_t>, int> count;
  for (uint64_t i = 0; i < 60000; ++i) ++count[Draw(TestKey(i % 16), 11, 16 * i, 3)];
  CHECK_EQ(count.size(), 6u);
  for (const auto& [perm, times] : count) {
    CHECK(IsPermutation(perm));
    CHECK(times > 9500 && times < 10500);
  }
}

// Expected 1000 of 8000 draws for each value and position, standard deviation 30.
TEST(EveryValueReachesEveryPosition) {
  const AesKey key = TestKey(6);
  int count[8][8] = {};
  for (uint64_t i = 0; i < 8000; ++i) {
    const std::vector<int32_t> perm = Draw(key, 12, 64 * i, 8);
    for (int p = 0; p < 8; ++p) ++count[p][perm[p]];
  }
  for (const auto& row : count) {
    for (const int times : row) CHECK(times > 830 && times < 1170);
  }
}

TEST(ApplyMovesWholeRows) {
  const AesKey key = TestKey(7);
  for (const int64_t row_bytes : {0, 1, 4, 7, 8, 16, 24, 32, 40, 100}) {
    for (const int64_t n : {0, 1, 2, 65, 1000}) {
      std::vector<uint8_t> in(static_cast<size_t>(n * row_bytes + 16));
      tfe_bench::AesCtr(key, 13, 0, in.size() / 16, in.data());
      in.resize(static_cast<size_t>(n * row_bytes));
      std::vector<uint8_t> out(in.size() + 1, 0xa5);
      const std::vector<int32_t> perm = Draw(key, 14, 0, n);
      tfe_bench::ApplyPermutation(perm.data(), n, row_bytes, in.data(), out.data());
      CHECK_EQ(out.back(), 0xa5);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t b = 0; b < row_bytes; ++b) {
          CHECK_EQ(out[i * row_bytes + b], in[perm[i] * row_bytes + b]);
        }
      }
    }
  }
}
