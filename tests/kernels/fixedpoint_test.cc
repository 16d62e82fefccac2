#include "protocols/kernels/core/fixedpoint.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/check.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr uint64_t kSeed = 20240608;

int64_t Encode(double value, int fractional_bits) {
  uint64_t out = 0xdead;
  const int64_t bad = tfe_bench::EncodeFixed(&value, 1, fractional_bits, &out);
  return bad == -1 ? static_cast<int64_t>(out) : std::numeric_limits<int64_t>::min();
}

bool Fits(double value, int fractional_bits) {
  uint64_t out;
  return tfe_bench::EncodeFixed(&value, 1, fractional_bits, &out) == -1;
}

double Decode(int64_t value, int fractional_bits) {
  const uint64_t in = static_cast<uint64_t>(value);
  double out;
  tfe_bench::DecodeFixed(&in, 1, fractional_bits, &out);
  return out;
}

}  // namespace

TEST(TiesRoundToEven) {
  const double values[] = {0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 0.49999999999999994, -0.0};
  const int64_t want[] = {0, 2, 2, 4, 0, -2, -2, 0, 0};
  for (int i = 0; i < 9; ++i) {
    CHECK_EQ(Encode(values[i], 0), want[i]);
    CHECK_EQ(Encode(std::ldexp(values[i], -20), 20), want[i]);
  }
  CHECK_EQ(Encode(4503599627370495.5, 0), 4503599627370496);  // 2^52 - 1/2
  CHECK_EQ(Encode(4503599627370497.0, 0), 4503599627370497);
}

TEST(SmallestPowersOfTwoAndTinyValues) {
  for (int f = 0; f <= 62; ++f) {
    if (f < 62) CHECK_EQ(Encode(1.0, f), int64_t{1} << f);
    if (f < 62) CHECK_EQ(Encode(-1.0, f), -(int64_t{1} << f));
    CHECK_EQ(Encode(std::ldexp(1.0, -f), f), 1);
    CHECK_EQ(Encode(std::numeric_limits<double>::denorm_min(), f), 0);
    CHECK_EQ(Encode(-std::numeric_limits<double>::min(), f), 0);
  }
}

TEST(LimitIsExclusiveOnBothSides) {
  for (int f = 0; f <= 62; ++f) {
    const double limit = std::ldexp(1.0, 62 - f);
    CHECK(!Fits(limit, f));
    CHECK(!Fits(-limit, f));
    CHECK_EQ(Encode(std::nextafter(limit, 0.0), f), (int64_t{1} << 62) - 512);
    CHECK_EQ(Encode(-std::nextafter(limit, 0.0), f), -((int64_t{1} << 62) - 512));
    for (const double bad : {kInf, -kInf, kNan, -kNan, std::numeric_limits<double>::max()}) {
      CHECK(!Fits(bad, f));
    }
  }
}

TEST(ReportsTheFirstBadIndex) {
  for (const int64_t n : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<double> in(static_cast<size_t>(n), 1.25);
    std::vector<uint64_t> out(in.size());
    CHECK_EQ(tfe_bench::EncodeFixed(in.data(), n, 16, out.data()), -1);
    for (int64_t first = n - 1; first >= 0; first -= 1 + n / 9) {
      in[first] = first % 2 == 0 ? kNan : 1e30;  // the ones after it stay bad, too
      CHECK_EQ(tfe_bench::EncodeFixed(in.data(), n, 16, out.data()), first);
    }
  }
}

TEST(DecodeReadsTwosComplement) {
  CHECK_EQ(Decode(-1, 0), -1.0);
  CHECK_EQ(Decode(3, 1), 1.5);
  CHECK_EQ(Decode(-(int64_t{1} << 20), 20), -1.0);
  CHECK_EQ(Decode(std::numeric_limits<int64_t>::min(), 62), -2.0);
  CHECK_EQ(Decode(std::numeric_limits<int64_t>::max(), 63 - 1), 2.0);
  CHECK_EQ(Decode(1, 62), std::ldexp(1.0, -62));
}

TEST(DecodeUndoesEncodeWithinHalfAStep) {
  std::cerr << "seed " << kSeed << "\n";
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> mantissa(-1.0, 1.0);
  for (int round = 0; round < 20000; ++round) {
    const int f = static_cast<int>(random() % 63);
    const double value = std::ldexp(mantissa(random), static_cast<int>(random() % 62) - f);
    const int64_t code = Encode(value, f);
    CHECK_EQ(static_cast<double>(code), std::nearbyint(std::ldexp(value, f)));
    CHECK(std::fabs(Decode(code, f) - value) <= std::ldexp(0.5, -f));
  }
}
