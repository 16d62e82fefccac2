// Fixed point: a real number v is the ring element round(v * 2^f) mod 2^64.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_FIXEDPOINT_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_FIXEDPOINT_H_

#include <cstdint>

namespace tfe_bench {

// out[i] = in[i] * 2^f rounded to the nearest integer, ties to even, 0 <= f <= 62. Returns -1, or
// the index of the first value that is NaN, infinite or not below 2^(62-f) in absolute value; then
// the contents of `out` are unspecified. Assumes the default rounding mode.
int64_t EncodeFixed(const double* in, int64_t n, int fractional_bits, uint64_t* out);

// out[i] = in[i], read as two's complement, times 2^-f, rounded to the nearest double.
void DecodeFixed(const uint64_t* in, int64_t n, int fractional_bits, double* out);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_FIXEDPOINT_H_
