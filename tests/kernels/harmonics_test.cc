#include "protocols/kernels/core/harmonics.h"

#include <cmath>
#include <vector>

#include "tests/kernels/check.h"

using tfe_bench::Waves;

namespace {

// At phases of `bits` bits, J multiples: how far they are from the sines of the library, and a digest.
double Worst(int odd, int bits, int64_t n, uint64_t* digest) {
  std::vector<uint64_t> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = 0x9e3779b97f4a7c15 * static_cast<uint64_t>(i);
  Waves waves(x.data(), n, odd, bits);
  double worst = 0;
  const double unit = std::ldexp(1.0, -tfe_bench::kUnitBits);
  for (int j = 1; j <= tfe_bench::kMostHarmonics; ++j) {
    if (j > 1) waves.Next();
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t phase = (static_cast<uint64_t>(odd) * x[i] * j) << (64 - bits);
      const double turn = std::ldexp(static_cast<double>(phase >> 11), -53);
      worst = std::fmax(worst, std::fabs(waves.cos()[i] * unit - std::cos(2 * M_PI * turn)));
      worst = std::fmax(worst, std::fabs(waves.sin()[i] * unit - std::sin(2 * M_PI * turn)));
      *digest = (*digest ^ static_cast<uint64_t>(waves.cos()[i])) * 0x100000001b3;
      *digest = (*digest ^ static_cast<uint64_t>(waves.sin()[i])) * 0x100000001b3;
    }
  }
  return worst;
}

}  // namespace

TEST(SinesAreTheSameIntegersOnEveryProcessor) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const int bits : {1, 2, 7, 25, 32}) {
    for (const int odd : {1, 23}) {
      for (const int64_t n : {int64_t{1}, int64_t{7}, tfe_bench::kMostWaves}) {
        CHECK(Worst(odd, bits, n, &digest) < std::ldexp(1.0, -19));
      }
    }
  }
  // Evaluators that differ in one of them would be off by a uniform share.
  CHECK_EQ(digest, uint64_t{9872927681150611566u});
}
