#include "protocols/kernels/core/gemm.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/gemm_isa.h"
#include "tests/kernels/check.h"
#include "tests/kernels/ways.h"

namespace {

using tfe_bench::ParallelFor;
using tfe_bench::Serial;
using tfe_bench::internal::GemmArgs;
using tfe_bench::internal::GemmIsa;

constexpr uint64_t kSeed = 20240607;
constexpr uint64_t kGuard = 0xa5a5a5a5a5a5a5a5;

// A way to multiply: an instruction set, or Gemm, which chooses one for the bits that are read.
struct Path {
  const GemmIsa* isa;
  int bits;
};

std::vector<Path> PathsOfThisCpu() {
  std::vector<Path> paths = {{nullptr, 64}, {nullptr, 52}, {nullptr, 48}};
  const auto add = [&paths](const GemmIsa& isa) { paths.push_back({&isa, isa.bits}); };
  add(tfe_bench::internal::kGemmPortable);
  if (tfe_bench::Cpu().avx2) add(tfe_bench::internal::kGemmAvx2);
  if (tfe_bench::Cpu().avx512) add(tfe_bench::internal::kGemmAvx512);
  if (tfe_bench::Cpu().ifma) add(tfe_bench::internal::kGemmIfma);
  if (tfe_bench::Cpu().ifma) add(tfe_bench::internal::kGemmFullIfma);
  for (const GemmIsa& isa : tfe_bench::internal::kGemmAmx) {
    if (tfe_bench::Cpu().amx) add(isa);
  }
  return paths;
}

enum Fill { kRandom, kAllOnes };

// Empty if all paths are right, otherwise what went wrong. Leading dimensions exceed the widths by
// `gap`, and the gaps of c must survive.
std::string Try(const ParallelFor& parallel, int64_t m, int64_t n, int64_t k, int64_t gap,
                bool accumulate, Fill fill = kRandom,
                const std::vector<Path>& paths = PathsOfThisCpu()) {
  std::mt19937_64 random(kSeed + static_cast<uint64_t>(m * 1000003 + n * 1009 + k));
  const int64_t lda = k + gap, ldb = n + gap, ldc = n + gap;
  const auto words = [&](int64_t size) {
    return fill == kAllOnes ? Words(static_cast<size_t>(size), ~uint64_t{0})
                            : RandomWords(&random, size);
  };
  // Exactly as long as the last row needs, so that a sanitizer sees an overrun.
  const Words a = words(m > 0 && k > 0 ? (m - 1) * lda + k : 0);
  const Words b = words(k > 0 && n > 0 ? (k - 1) * ldb + n : 0);
  Words before = words(m > 0 && n > 0 ? (m - 1) * ldc + n : 0);
  Words want = before;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = n; j < ldc && i + 1 < m && n > 0; ++j) {
      before[i * ldc + j] = want[i * ldc + j] = kGuard;
    }
    for (int64_t j = 0; j < n; ++j) {
      uint64_t sum = accumulate ? before[i * ldc + j] : 0;
      for (int64_t p = 0; p < k; ++p) sum += a[i * lda + p] * b[p * ldb + j];
      want[i * ldc + j] = sum;
    }
  }
  // A source gives a b without gaps, word for word.
  const std::function<void(int64_t, int64_t, uint64_t*)> source = [&](int64_t first, int64_t count,
                                                                     uint64_t* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = b[(first + i) / n * ldb + (first + i) % n];
  };
  for (const auto& [isa, bits] : paths)
  for (const bool is_computed : {false, true}) {
    Words c = before;
    if (isa == nullptr && is_computed) {
      tfe_bench::Gemm(bits, m, n, k, a.data(), lda, source, c.data(), ldc, accumulate, parallel);
    } else if (isa == nullptr) {
      tfe_bench::Gemm(bits, m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc, accumulate,
                      parallel);
    } else {
      tfe_bench::internal::GemmWith(
          *isa,
          {m, n, k, a.data(), lda, is_computed ? nullptr : b.data(), ldb, c.data(), ldc, accumulate,
           is_computed ? &source : nullptr},
          parallel);
    }
    for (size_t at = 0; at < c.size(); ++at) {
      const bool is_gap = static_cast<int64_t>(at) % ldc >= n;
      const uint64_t wrong = (c[at] ^ want[at]) << (is_gap ? 0 : 64 - bits);
      if (wrong == 0) continue;
      std::ostringstream text;
      text << "m=" << m << " n=" << n << " k=" << k << " gap=" << gap
           << " accumulate=" << accumulate << " bits=" << bits << " computed=" << is_computed
           << " by " << (isa == nullptr ? "choice" : isa->name) << ": wrong at row " << at / ldc
           << " column " << at % ldc;
      return text.str();
    }
  }
  return "";
}

// Whether this thread has a state of AMX tiles, which the kernel would have to save.
bool HasTileState() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return (low >> 18 & 1) != 0;
}

}  // namespace

TEST(EmptyShapesAreTheZeroMatrix) {
  for (const bool accumulate : {false, true}) {
    for (const int64_t size : {0, 1, 5, 40}) {
      CHECK_EQ(Try(Serial, 0, size, 7, 0, accumulate), "");
      CHECK_EQ(Try(Serial, size, 0, 7, 2, accumulate), "");
      CHECK_EQ(Try(Serial, size, 9, 0, 2, accumulate), "");
      CHECK_EQ(Try(Serial, 0, 0, 0, 0, accumulate), "");
    }
  }
}

TEST(EverySmallShapeMatchesTheDefinition) {
  for (int64_t m = 1; m <= 10; ++m) {
    for (int64_t n = 1; n <= 34; ++n) {
      for (const int64_t k : {1, 2, 3, 7, 8, 9, 17}) {
        CHECK_EQ(Try(Serial, m, n, k, (m + n) % 3, (n + k) % 2 == 0), "");
      }
    }
  }
}

TEST(SkinnyAndDeepShapesMatchTheDefinition) {
  const int64_t shapes[][3] = {{1, 1, 10000},  {1, 300, 784},  {2, 200, 129},   {3, 131, 257},
                               {4, 129, 300},  {5, 100, 511},  {8, 49, 1000},   {300, 1, 784},
                               {301, 10, 784}, {100, 16, 520}, {1000, 20, 9},   {1000, 10, 9},
                               {25, 20, 9000}, {7, 3, 70000},  {33, 24, 33000}, {17, 5, 513}};
  for (const auto& [m, n, k] : shapes) {
    CHECK_EQ(Try(Serial, m, n, k, 0, false), "");
    CHECK_EQ(Try(TwoThreads, m, n, k, 3, true), "");
  }
}

TEST(ShapesAroundTheBlockSizesMatchTheDefinition) {
  for (const int64_t m : {23, 24, 127, 129}) {
    for (const int64_t n : {48, 49, 95, 97}) {
      for (const int64_t k : {127, 128, 129, 257}) {
        CHECK_EQ(Try(Backwards, m, n, k, 1, k % 2 == 0), "");
      }
    }
  }
  // More columns, and more depth, than are packed at a time.
  CHECK_EQ(Try(TwoThreads, 25, 4500, 130, 0, true), "");
  CHECK_EQ(Try(TwoThreads, 70, 300, 2500, 0, false), "");
}

TEST(RandomShapesMatchTheDefinition) {
  std::cerr << "seed " << kSeed << "\n";
  std::mt19937_64 random(kSeed);
  const ParallelFor ways[] = {Serial, TwoThreads, Backwards};
  for (int round = 0; round < 200; ++round) {
    const auto draw = [&random](int64_t limit) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
    };
    const int64_t m = draw(200), n = draw(200), k = draw(300), gap = draw(4);
    CHECK_EQ(Try(ways[round % 3], m, n, k, gap, round % 2 == 0), "");
  }
}

TEST(EveryNumberOfBitsIsRightOnEveryPath) {
  std::vector<Path> paths;
  for (const int bits :
       {1, 7, 8, 9, 31, 32, 33, 40, 47, 48, 49, 51, 52, 53, 56, 63, 64}) {
    paths.push_back({nullptr, bits});
    for (const Path& path : PathsOfThisCpu()) {
      if (path.isa != nullptr && path.bits >= bits) paths.push_back({path.isa, bits});
    }
  }
  for (const Fill fill : {kRandom, kAllOnes}) {
    CHECK_EQ(Try(Serial, 49, 33, 300, 1, false, fill, paths), "");
    CHECK_EQ(Try(TwoThreads, 140, 70, 65, 0, true, fill, paths), "");
    CHECK_EQ(Try(Serial, 5, 3, 64, 2, true, fill, paths), "");
  }
}

// Limbs of ones at every depth: the largest sums that 32 bits must hold.
TEST(DepthsAroundTheJoinsOfSumsMatchTheDefinition) {
  for (const int64_t k : {1, 63, 64, 65, 1023, 1024, 1025, 2049, 16513, 66053}) {
    for (const Fill fill : {kRandom, kAllOnes}) {
      CHECK_EQ(Try(Serial, 13, 17, k, 0, false, fill), "");
      CHECK_EQ(Try(TwoThreads, 33, 12, k, 1, true, fill), "");
    }
  }
}

TEST(SizesAroundTheTilesMatchTheDefinition) {
  const int64_t sizes[] = {1, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 49};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      CHECK_EQ(Try(Backwards, m, n, 64 + m % 3, n % 3, m % 2 == 0), "");
    }
  }
}

TEST(NoTileStateIsLeftBehind) {
  if (!tfe_bench::Cpu().amx) return;
  alignas(64) uint8_t config[64] = {1};
  config[16] = 64, config[48] = 16;  // tile 0: 16 rows of 64 bytes
  asm volatile("ldtilecfg %0\n\ttilezero %%tmm0" : : "m"(config));
  CHECK(HasTileState());
  asm volatile("tilerelease");
  CHECK(!HasTileState());
  const int64_t n = 100, k = 3000;
  const Words a(n * k, 3), b(k * n, 5);
  Words c(n * n);
  const auto multiply = [&](const ParallelFor& parallel) {
    tfe_bench::Gemm(48, n, n, k, a.data(), k, b.data(), n, c.data(), n, false, parallel);
  };
  bool left = false;
  multiply([&](int64_t total, int64_t, const Range& run) {
    std::thread other([&] {
      run(total / 2, total);
      left = HasTileState();
    });
    run(0, total / 2);
    other.join();
  });
  CHECK(!left);
  multiply(Serial);
  CHECK(!HasTileState());
}

TEST(TheSelfTestFindsAWrongProduct) {
  CHECK(tfe_bench::FindWrongIsa() == nullptr);
  GemmIsa isa = tfe_bench::internal::kGemmPortable;
  CHECK(tfe_bench::internal::IsRight(isa));
  isa.block = [](const tfe_bench::internal::GemmBlock& g) {
    tfe_bench::internal::GemmBlockPortable(g);
    g.c[g.m - 1] ^= uint64_t{1} << 40;
  };
  CHECK(!tfe_bench::internal::IsRight(isa));
  isa.bits = 40;  // what is wrong is not read
  CHECK(tfe_bench::internal::IsRight(isa));
}
