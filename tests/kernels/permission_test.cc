// Linux refuses the permission for AMX tiles: products go on without them.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/gemm.h"
#include "tests/kernels/check.h"
#include "tests/kernels/ways.h"

namespace {

// From here on, arch_prctl fails in this process.
bool RefuseArchPrctl() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

TEST(ARefusedPermissionLeavesTheOtherInstructionSets) {
  CHECK(RefuseArchPrctl());  // (before the first look at the processor)
  CHECK(!tfe_bench::Cpu().amx);
  CHECK(std::string(tfe_bench::IsaName()) != "amx");
  std::mt19937_64 random(34);
  const int64_t m = 70, n = 50, k = 300;
  const Words a = RandomWords(&random, m * k), b = RandomWords(&random, k * n);
  for (const int bits : {48, 52, 64}) {
    Words c(m * n);
    tfe_bench::Gemm(bits, m, n, k, a.data(), k, b.data(), n, c.data(), n, false, TwoThreads);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        uint64_t sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
        CHECK_EQ((c[i * n + j] ^ sum) << (64 - bits), uint64_t{0});
      }
    }
  }
}
