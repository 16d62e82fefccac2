#include "protocols/kernels/core/fixedpoint.h"

#include <emmintrin.h>

#include <algorithm>
#include <cmath>

namespace tfe_bench {
namespace {

constexpr double kLimit = 4611686018427387904.0;  // 2^62

// False for NaN, too. Doubles near 2^62 are integers, so rounding cannot reach the limit.
bool Fits(double scaled) { return std::fabs(scaled) < kLimit; }

}  // namespace

int64_t EncodeFixed(const double* in, int64_t n, int fractional_bits, uint64_t* out) {
  const double scale = std::ldexp(1.0, fractional_bits);  // so that the product is exact
  constexpr int64_t kBatch = 1024;
  for (int64_t begin = 0; begin < n; begin += kBatch) {
    const int64_t end = std::min(n, begin + kBatch);
    bool all_fit = true;
    for (int64_t i = begin; i < end; ++i) {
      const double scaled = in[i] * scale;
      all_fit &= Fits(scaled);  // no branch on a value: only the verdict on a batch shows
      // CVTSD2SI rounds ties to even in one instruction; llrint would be a call.
      out[i] = static_cast<uint64_t>(_mm_cvtsd_si64(_mm_set_sd(scaled)));
    }
    if (all_fit) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (!Fits(in[i] * scale)) return i;
    }
  }
  return -1;
}

void DecodeFixed(const uint64_t* in, int64_t n, int fractional_bits, double* out) {
  const double scale = std::ldexp(1.0, -fractional_bits);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<double>(static_cast<int64_t>(in[i])) * scale;
  }
}

}  // namespace tfe_bench
