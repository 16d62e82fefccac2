// What this CPU can run; the only place that decides which compiled path is used.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_

namespace tfe_bench {

struct CpuFeatures {
  bool aes;     // AES-NI
  bool avx2;    // AVX2, FMA and OS support for ymm
  bool bmi2;
  bool avx512;  // F, BW, DQ, VL and OS support for zmm
  bool vaes;    // VAES on zmm (implies avx512 here)
};

// Detected once. TFE_BENCH_ISA=avx2 hides avx512 and vaes, so that tests can exercise the AVX2
// paths on any machine; every path computes the same bits, so it changes speed only.
const CpuFeatures& Cpu();

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_
