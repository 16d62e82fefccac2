#include "protocols/kernels/core/harmonics.h"

#include <cstring>

#include "protocols/kernels/core/per_isa.h"

namespace tfe_bench {
namespace {

constexpr int64_t kUnit = int64_t{1} << kUnitBits;

// sin(pi a / 2) for a in [0, 1], off by 2^-36: the coefficients of a, a^3, a^5, ... in units.
constexpr int64_t kSine[] = {1686629713, -693598663, 85569264, -5026852, 172032, -3670};

// The sine of a 64-bit fraction of a turn.
TFE_BENCH_INLINE inline int64_t Sine(uint64_t turn) {
  const int64_t signed_turn = static_cast<int64_t>(turn) >> 32;  // [-2^31, 2^31): half a turn
  const int64_t sign = signed_turn >> 63;
  const int64_t size = (signed_turn ^ sign) - sign;
  const int64_t other = 2 * kUnit - size;  // sin(pi - a) = sin(a)
  const int64_t beyond = (other - size) >> 63;
  const int64_t a = size + ((other - size) & beyond);
  const int64_t square = (a * a) >> kUnitBits;
  int64_t sum = kSine[5];
  for (int i = 4; i >= 0; --i) sum = kSine[i] + ((sum * square) >> kUnitBits);
  const int64_t sine = (sum * a) >> kUnitBits;
  return (sine ^ sign) - sign;
}

TFE_BENCH_INLINE inline void Start(const uint64_t* x, int64_t n, uint64_t odd, int bits,
                                   int64_t* cos, int64_t* sin) {
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t turn = (odd * x[i]) << (64 - bits);
    cos[i] = Sine(turn + (uint64_t{1} << 62));
    sin[i] = Sine(turn);
  }
}

// Chebyshev: f((j + 1) v) = 2 cos(v) f(j v) - f((j - 1) v).
TFE_BENCH_INLINE inline void Step(const int64_t* cos, int64_t n, int64_t* before, int64_t* now) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t next = ((cos[i] * now[i]) >> (kUnitBits - 1)) - before[i];
    before[i] = now[i];
    now[i] = next;
  }
}

TFE_BENCH_PER_ISA(Start,
                  (const uint64_t* x, int64_t n, uint64_t odd, int bits, int64_t* cos,
                   int64_t* sin),
                  (x, n, odd, bits, cos, sin))
TFE_BENCH_PER_ISA(Step, (const int64_t* cos, int64_t n, int64_t* before, int64_t* now),
                  (cos, n, before, now))

}  // namespace

Waves::Waves(const uint64_t* x, int64_t n, int odd, int bits) : n_(n) {
  static const auto start = ChooseStart();
  start(x, n, static_cast<uint64_t>(odd), bits, once_[0], once_[1]);
  std::memcpy(now_, once_, sizeof(now_));
  for (int64_t i = 0; i < n; ++i) {
    before_[0][i] = kUnit;
    before_[1][i] = 0;
  }
}

void Waves::Next() {
  static const auto step = ChooseStep();
  for (int f = 0; f < 2; ++f) step(once_[0], n_, before_[f], now_[f]);
}

}  // namespace tfe_bench
