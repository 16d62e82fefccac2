// Packed words: what is unpacked is the low bits of what was packed, in any split of the work.
#include "protocols/kernels/core/pack.h"

#include <cstdint>
#include <random>
#include <vector>

#include "tests/kernels/check.h"

using namespace tfe_bench;

TEST(unpacking_gives_back_the_low_bits) {
  std::mt19937_64 random(1);
  for (int width = 1; width <= 64; ++width) {
    for (int64_t n : {0, 1, 7, 8, 9, 100}) {
      std::vector<uint64_t> x(n), y(n);
      for (auto& v : x) v = random();
      std::vector<uint8_t> packed(PackedBytes(n, width), 0xAA);
      for (int64_t begin = 0; begin < n; begin += 8) {
        PackRange(x.data(), n, width, packed.data(), begin, begin + 8);
      }
      UnpackRange(packed.data(), n, width, y.data(), 0, n);
      const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
      for (int64_t i = 0; i < n; ++i) CHECK_EQ(y[i], x[i] & mask);
      std::vector<uint64_t> z(n);
      for (int64_t begin = 0; begin < n; begin += 8) {
        UnpackRange(packed.data(), n, width, z.data(), begin, begin + 8);
      }
      for (int64_t i = 0; i < n; ++i) CHECK_EQ(z[i], y[i]);
    }
  }
}

TEST(size_is_the_bits_in_whole_bytes) {
  CHECK_EQ(PackedBytes(3, 5), 2);
  CHECK_EQ(PackedBytes(8, 16), 16);
  CHECK_EQ(PackedBytes(0, 7), 0);
}
