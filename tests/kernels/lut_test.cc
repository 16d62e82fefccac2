// Comparison tables: both builds agree with the plain comparison, and with each other.
#include "protocols/kernels/core/lut.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "protocols/kernels/core/aes_ctr.h"
#include "protocols/kernels/core/cpu.h"
#include "tests/kernels/check.h"

using namespace tfe_bench;

namespace {

LutRecipe Recipe(int bits, std::vector<int> widths, std::vector<std::vector<int>> levels) {
  LutRecipe r;
  r.bits = bits;
  r.chunks = static_cast<int>(widths.size());
  for (int i = 0; i < r.chunks; ++i) r.width[i] = widths[i];
  r.levels = static_cast<int>(levels.size());
  for (int l = 0; l < r.levels; ++l) {
    r.groups[l] = static_cast<int>(levels[l].size());
    for (int g = 0; g < r.groups[l]; ++g) r.group[l][g] = levels[l][g];
  }
  return r;
}

struct Masks {
  AesKey key;
  Masks() {
    uint8_t bytes[16] = {1, 2, 3};
    ExpandAesKey(bytes, &key);
  }
  static void Fill(const void* env, int stream, uint64_t first, uint64_t blocks, uint64_t* out) {
    AesCtr(static_cast<const Masks*>(env)->key, static_cast<uint64_t>(stream), first, blocks,
           reinterpret_cast<uint8_t*>(out));
  }
};

// Runs dealer and both evaluators over n random masked values; returns how many bits are wrong.
int Wrong(const LutFunctions& f, const LutRecipe& r, int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int limbs = r.bits > 64 ? 2 : 1;
  std::vector<uint64_t> lam(n * limbs), m(n * limbs);
  std::vector<bool> expected(n);
  for (int64_t i = 0; i < n; ++i) {
    unsigned __int128 x = random(), l = random();
    if (limbs == 2) {
      x |= static_cast<unsigned __int128>(random()) << 64;
      l |= static_cast<unsigned __int128>(random()) << 64;
    }
    if (i % 5 == 0) x = 0;
    if (i % 5 == 1) x = ~static_cast<unsigned __int128>(0);
    const unsigned __int128 sum = x + l;
    std::memcpy(&lam[i * limbs], &l, 8 * limbs);
    std::memcpy(&m[i * limbs], &sum, 8 * limbs);
    expected[i] = x >> (r.bits - 1) & 1;
  }
  const int64_t words = (n + 63) / 64, supers = SuperblocksFor(words);
  std::vector<uint64_t> lam_planes(words * r.bits), m_planes(words * r.bits);
  f.planes(lam.data(), limbs, nullptr, nullptr, n, r.bits, lam_planes.data(), 0, supers);
  f.planes(m.data(), limbs, nullptr, nullptr, n, r.bits, m_planes.data(), 0, supers);
  Masks masks;
  const MaskSource source{Masks::Fill, &masks};
  std::vector<uint64_t> scratch(LutScratchWords(r));
  std::vector<uint64_t> dealt(words * r.DealtPlanes()), top(words);
  f.deal(r, words, lam_planes.data(), source, dealt.data(), top.data(), scratch.data(), 0, supers);
  std::vector<uint64_t> a(words * r.ExchangePlanes(0)), b(a.size());
  f.exchange(r, words, m_planes.data(), nullptr, source, a.data(), scratch.data(), 0, supers);
  f.exchange(r, words, m_planes.data(), dealt.data(), source, b.data(), scratch.data(), 0, supers);
  for (int level = 0; level < r.levels; ++level) {
    const int planes = level == r.levels - 1 ? 1 : r.ExchangePlanes(level + 1);
    std::vector<uint64_t> next_a(words * planes), next_b(words * planes);
    f.node(r, level, words, m_planes.data(), a.data(), b.data(), nullptr, source, next_a.data(),
           scratch.data(), 0, supers);
    f.node(r, level, words, m_planes.data(), b.data(), a.data(), dealt.data(), source,
           next_b.data(), scratch.data(), 0, supers);
    a.swap(next_a);
    b.swap(next_b);
  }
  int wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    wrong += static_cast<bool>((a[i / 64] ^ b[i / 64]) >> (i % 64) & 1) != expected[i];
  }
  return wrong;
}

void CheckAll(const LutFunctions& f) {
  for (int64_t n : {1, 63, 64, 65, 511, 512, 513, 1700}) {
    CHECK_EQ(Wrong(f, Recipe(2, {1}, {{1}}), n, 1), 0);
    CHECK_EQ(Wrong(f, Recipe(16, {4, 4, 4, 3}, {{4}}), n, 2), 0);
    CHECK_EQ(Wrong(f, Recipe(31, std::vector<int>(10, 3), {{3, 3, 4}, {3}}), n, 3), 0);
    CHECK_EQ(Wrong(f, Recipe(64, std::vector<int>(21, 3), {{3, 3, 3, 3, 3, 3, 3}, {2, 2, 3}, {3}}),
                   n, 4),
             0);
    CHECK_EQ(Wrong(f, Recipe(85, std::vector<int>(28, 3), {{7, 7, 7, 7}, {4}}), n, 5), 0);
    CHECK_EQ(Wrong(f, Recipe(128, {1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
                                   3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3},
                             {{8, 8, 8, 8, 8, 3}, {6}}),
                   n, 6),
             0);
  }
}

}  // namespace

TEST(avx2_build_gives_the_sign_of_every_masked_value) { CheckAll(*LutAvx2()); }

TEST(avx512_build_gives_the_sign_of_every_masked_value) {
  if (Cpu().avx512) CheckAll(*LutAvx512());
}

TEST(counts_follow_the_closed_forms) {
  const LutRecipe r = Recipe(31, std::vector<int>(10, 3), {{3, 3, 4}, {3}});
  CHECK_EQ(r.TablePlanes(), 70);
  CHECK_EQ(r.MonomialPlanes(0) + r.MonomialPlanes(1), 106 - 70);
  CHECK_EQ(r.ExchangePlanes(0) + r.ExchangePlanes(1), 24);
}

TEST(unfit_recipes_are_refused) {
  CHECK(Recipe(31, std::vector<int>(10, 3), {{3, 3, 4}, {3}}).Check() == nullptr);
  CHECK(Recipe(31, std::vector<int>(9, 3), {{9}}).Check() != nullptr);
  CHECK(Recipe(31, std::vector<int>(10, 3), {{3, 3}, {2}}).Check() != nullptr);
  CHECK(Recipe(31, std::vector<int>(10, 3), {{3, 3, 4}}).Check() != nullptr);
  CHECK(Recipe(129, std::vector<int>(43, 3), {{8}}).Check() != nullptr);
}
