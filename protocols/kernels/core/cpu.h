// What this CPU can run; the only place that decides which compiled path is used.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_

namespace tfe_bench {

struct CpuFeatures {
  bool aes;     // AES-NI
  bool avx2;    // AVX2, FMA and OS support for ymm
  bool bmi2;
  bool avx512;  // F, BW, DQ, VL and OS support for zmm
  bool ifma;    // AVX-512 IFMA (implies avx512 here)
  bool vaes;    // VAES on zmm (implies avx512 here)
};

// Detected once. TFE_BENCH_ISA=avx2 hides avx512, ifma and vaes, and TFE_BENCH_ISA=avx512 hides ifma,
// so that tests can exercise the other paths on any machine. Every path computes the same bits that
// are read, so it changes speed only.
const CpuFeatures& Cpu();

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_
