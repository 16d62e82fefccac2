#include "protocols/kernels/core/cpu.h"

#include <cstdlib>
#include <cstring>

namespace tfe_bench {
namespace {

CpuFeatures Detect() {
  // libgcc's checks include XGETBV, so a feature whose registers the OS does not save reads false.
  __builtin_cpu_init();
  CpuFeatures cpu;
  cpu.aes = __builtin_cpu_supports("aes") && __builtin_cpu_supports("sse4.1");
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  cpu.bmi2 = __builtin_cpu_supports("bmi2");
  cpu.avx512 = cpu.avx2 && cpu.bmi2 && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
  // AES-NI too: the compiler may use it anywhere in a file built with -maes.
  cpu.vaes = cpu.avx512 && cpu.aes && __builtin_cpu_supports("vaes");
  cpu.ifma = cpu.avx512 && __builtin_cpu_supports("avx512ifma");
  const char* cap = std::getenv("TFE_BENCH_ISA");
  const bool avx2 = cap != nullptr && std::strcmp(cap, "avx2") == 0;
  if (avx2) cpu.avx512 = cpu.vaes = false;
  if (avx2 || (cap != nullptr && std::strcmp(cap, "avx512") == 0)) cpu.ifma = false;
  return cpu;
}

}  // namespace

const CpuFeatures& Cpu() {
  static const CpuFeatures features = Detect();
  return features;
}

}  // namespace tfe_bench
