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

// Empty if right, otherwise what went wrong. Leading dimensions exceed the widths by `gap`, and
// the gaps of c must survive.
std::string Try(const GemmIsa* isa, const ParallelFor& parallel, int64_t m, int64_t n, int64_t k,
                int64_t gap, bool accumulate) {
  std::mt19937_64 random(kSeed + static_cast<uint64_t>(m * 1000003 + n * 1009 + k));
  const int64_t lda = k + gap, ldb = n + gap, ldc = n + gap;
  // Exactly as long as the last row needs, so that a sanitizer sees an overrun.
  const Words a = RandomWords(&random, m > 0 && k > 0 ? (m - 1) * lda + k : 0);
  const Words b = RandomWords(&random, k > 0 && n > 0 ? (k - 1) * ldb + n : 0);
  Words c = RandomWords(&random, m > 0 && n > 0 ? (m - 1) * ldc + n : 0);
  Words want = c;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = n; j < ldc && i + 1 < m && n > 0; ++j) {
      c[i * ldc + j] = want[i * ldc + j] = kGuard;
    }
    for (int64_t j = 0; j < n; ++j) {
      uint64_t sum = accumulate ? c[i * ldc + j] : 0;
      for (int64_t p = 0; p < k; ++p) sum += a[i * lda + p] * b[p * ldb + j];
      want[i * ldc + j] = sum;
    }
  }
  const int bits = isa == nullptr ? 64 : isa->bits;
  if (isa == nullptr) {
    tfe_bench::Gemm(bits, m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc, accumulate, parallel);
  } else {
    tfe_bench::internal::GemmWith(
        *isa, {m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc, accumulate}, parallel);
  }
  for (int64_t i = 0; i < m && bits < 64; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      c[i * ldc + j] &= (uint64_t{1} << bits) - 1;
      want[i * ldc + j] &= (uint64_t{1} << bits) - 1;
    }
  }
  if (c == want) return "";
  const int64_t at = std::mismatch(c.begin(), c.end(), want.begin()).first - c.begin();
  std::ostringstream text;
  text << "m=" << m << " n=" << n << " k=" << k << " gap=" << gap << " accumulate=" << accumulate
       << " nr=" << (isa == nullptr ? 0 : isa->nr) << ": wrong at row " << at / ldc << " column "
       << at % ldc;
  return text.str();
}

std::vector<const GemmIsa*> IsasOfThisCpu() {
  std::vector<const GemmIsa*> isas = {nullptr, &tfe_bench::internal::kGemmPortable};
  if (tfe_bench::Cpu().avx2) isas.push_back(&tfe_bench::internal::kGemmAvx2);
  if (tfe_bench::Cpu().avx512) isas.push_back(&tfe_bench::internal::kGemmAvx512);
  if (tfe_bench::Cpu().ifma) isas.push_back(&tfe_bench::internal::kGemmIfma);
  return isas;
}

}  // namespace

TEST(EmptyShapesAreTheZeroMatrix) {
  for (const GemmIsa* isa : IsasOfThisCpu()) {
    for (const bool accumulate : {false, true}) {
      for (const int64_t size : {0, 1, 5, 40}) {
        CHECK_EQ(Try(isa, Serial, 0, size, 7, 0, accumulate), "");
        CHECK_EQ(Try(isa, Serial, size, 0, 7, 2, accumulate), "");
        CHECK_EQ(Try(isa, Serial, size, 9, 0, 2, accumulate), "");
        CHECK_EQ(Try(isa, Serial, 0, 0, 0, 0, accumulate), "");
      }
    }
  }
}

TEST(EverySmallShapeMatchesTheDefinition) {
  for (const GemmIsa* isa : IsasOfThisCpu()) {
    for (int64_t m = 1; m <= 10; ++m) {
      for (int64_t n = 1; n <= 34; ++n) {
        for (const int64_t k : {1, 2, 3, 7, 8, 9, 17}) {
          CHECK_EQ(Try(isa, Serial, m, n, k, (m + n) % 3, (n + k) % 2 == 0), "");
        }
      }
    }
  }
}

TEST(SkinnyAndDeepShapesMatchTheDefinition) {
  const int64_t shapes[][3] = {{1, 1, 10000},  {1, 300, 784},  {2, 200, 129},   {3, 131, 257},
                               {4, 129, 300},  {5, 100, 511},  {8, 49, 1000},   {300, 1, 784},
                               {301, 10, 784}, {100, 16, 520}, {1000, 20, 9},   {1000, 10, 9},
                               {25, 20, 9000}, {7, 3, 70000},  {33, 24, 33000}, {17, 5, 513}};
  for (const GemmIsa* isa : IsasOfThisCpu()) {
    for (const auto& [m, n, k] : shapes) {
      CHECK_EQ(Try(isa, Serial, m, n, k, 0, false), "");
      CHECK_EQ(Try(isa, TwoThreads, m, n, k, 3, true), "");
    }
  }
}

TEST(ShapesAroundTheBlockSizesMatchTheDefinition) {
  for (const GemmIsa* isa : IsasOfThisCpu()) {
    for (const int64_t m : {23, 24, 127, 129}) {
      for (const int64_t n : {48, 49, 95, 97}) {
        for (const int64_t k : {127, 128, 129, 257}) {
          CHECK_EQ(Try(isa, Backwards, m, n, k, 1, k % 2 == 0), "");
        }
      }
    }
    // More columns, and more depth, than are packed at a time.
    CHECK_EQ(Try(isa, TwoThreads, 25, 4500, 130, 0, true), "");
    CHECK_EQ(Try(isa, TwoThreads, 70, 300, 2500, 0, false), "");
  }
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
    for (const GemmIsa* isa : IsasOfThisCpu()) {
      CHECK_EQ(Try(isa, ways[round % 3], m, n, k, gap, round % 2 == 0), "");
    }
  }
}
