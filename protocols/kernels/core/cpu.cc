#include "protocols/kernels/core/cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace tfe_bench {
namespace {

// Asks Linux to let this process use AMX tiles: their first use would end it otherwise.
bool PermitTiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures Detect() {
  // libgcc's checks include XGETBV, so a feature whose registers the OS does not save reads false.
  __builtin_cpu_init();
  const char* cap = std::getenv("TFE_BENCH_ISA");
  const auto is_hidden_by = [cap](const char* isa) {
    return cap != nullptr && std::strcmp(cap, isa) == 0;
  };
  CpuFeatures cpu;
  cpu.aes = __builtin_cpu_supports("aes") && __builtin_cpu_supports("sse4.1");
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  cpu.bmi2 = __builtin_cpu_supports("bmi2");
  cpu.avx512 = cpu.avx2 && cpu.bmi2 && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && !is_hidden_by("avx2");
  // AES-NI too: the compiler may use it anywhere in a file built with -maes.
  cpu.vaes = cpu.avx512 && cpu.aes && __builtin_cpu_supports("vaes");
  cpu.ifma = cpu.avx512 && __builtin_cpu_supports("avx512ifma") &&
             __builtin_cpu_supports("avx512vnni") && !is_hidden_by("avx512");
  cpu.slow_mullq = __builtin_cpu_is("intel");
  cpu.amx = cpu.ifma && __builtin_cpu_supports("avx512vbmi") &&
            __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
            !is_hidden_by("ifma") && PermitTiles();
  return cpu;
}

}  // namespace

const CpuFeatures& Cpu() {
  static const CpuFeatures features = Detect();
  return features;
}

const char* IsaName() {
  return Cpu().amx ? "amx" : Cpu().ifma ? "ifma" : Cpu().avx512 ? "avx512" : "avx2";
}

}  // namespace tfe_bench
