// Cosines and sines of the multiples of an angle, in integers alone: the same on every machine, and in
// a time that no value shows in.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_HARMONICS_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_HARMONICS_H_

#include <cstdint>

namespace tfe_bench {

constexpr int kUnitBits = 30;  // cos and sin are multiples of 2^-30, those of j w x off by j^2 2^-27
constexpr int kMostHarmonics = 16;  // j
constexpr int64_t kMostWaves = 512;

// cos(j w x) and sin(j w x) of up to kMostWaves words x, with w = 2 pi odd / 2^bits: of j = 1 at first.
class Waves {
 public:
  Waves(const uint64_t* x, int64_t n, int odd, int bits);
  // From j to j + 1.
  void Next();

  const int64_t* cos() const { return now_[0]; }
  const int64_t* sin() const { return now_[1]; }

 private:
  const int64_t n_;
  // [cos, sin] of 1, j - 1 and j times the angle
  alignas(64) int64_t once_[2][kMostWaves], before_[2][kMostWaves], now_[2][kMostWaves];
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_HARMONICS_H_
