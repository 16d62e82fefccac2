// What this CPU can run; the only place that decides which compiled path is used.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_

namespace tfe_bench {

struct CpuFeatures {
  bool aes;     // AES-NI
  bool avx2;    // AVX2, FMA and OS support for ymm
  bool bmi2;
  bool avx512;  // F, BW, DQ, VL and OS support for zmm
  bool ifma;    // AVX-512 IFMA and VNNI (implies avx512 here)
  bool amx;     // AMX int8 and AVX-512 VBMI, with the kernel's permission (implies ifma here)
  bool vaes;    // VAES on zmm (implies avx512 here)
  bool slow_mullq;  // vpmullq has three micro-operations: Intel
};

// Detected once. TFE_BENCH_ISA=avx2, avx512, ifma or amx hides what comes after it in this order
// (avx2 hides vaes too), so that tests can exercise the other paths on any machine. Every path
// computes the same bits that are read, so it changes speed only.
// AMX needs Linux's permission, which the first call asks for once, for all threads of the process.
// Where that is refused (an old kernel, a seccomp filter), amx reads false.
const CpuFeatures& Cpu();

// The last of avx2, avx512, ifma and amx that this CPU can run.
const char* IsaName();

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_CPU_H_
