// Powers of two modulo 2^256 + 1 and Mersenne primes, against doubling and long double.
#include "protocols/kernels/core/modular.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/kernels/check.h"

using namespace tfe_bench;
using u128 = unsigned __int128;

namespace {

bool Equal(const Residue& a, const Residue& b) {
  for (int i = 0; i < 5; ++i) {
    if (a.limb[i] != b.limb[i]) return false;
  }
  return true;
}

bool IsTop(const Residue& r) {  // 2^256
  return r.limb[4] == 1;
}

bool IsZero(const Residue& r) {
  return (r.limb[0] | r.limb[1] | r.limb[2] | r.limb[3] | r.limb[4]) == 0;
}

Residue Minus(Residue a, uint64_t small) {  // of the four low limbs
  for (int i = 0; i < 4 && small; ++i) {
    const uint64_t before = a.limb[i];
    a.limb[i] -= small;
    small = before < small;
  }
  return a;
}

// 2 r + bit modulo N, slowly and with branches.
Residue Double(const Residue& r, uint64_t bit) {
  Residue d{};
  if (IsTop(r)) {  // 2 * -1 + bit = N - 2 + bit = 2^256 - 1 + bit
    if (bit) {
      d.limb[4] = 1;
    } else {
      for (int i = 0; i < 4; ++i) d.limb[i] = ~uint64_t{0};
    }
    return d;
  }
  uint64_t carry = bit;
  for (int i = 0; i < 4; ++i) {
    d.limb[i] = r.limb[i] << 1 | carry;
    carry = r.limb[i] >> 63;
  }
  if (!carry) return d;
  if ((d.limb[0] | d.limb[1] | d.limb[2] | d.limb[3]) == 0) {
    d.limb[4] = 1;
    return d;
  }
  return Minus(d, 1);
}

Residue Slow(const uint64_t p[5], uint32_t e) {
  Residue r{};
  for (int i = 319; i >= 0; --i) r = Double(r, p[i / 64] >> (i % 64) & 1);
  for (uint32_t i = 0; i < e; ++i) r = Double(r, 0);
  return r;
}

constexpr uint64_t kOnes = ~uint64_t{0};
// 0, 1, 2^256 - 1, 2^256, N, N + 1, the largest, and single bits.
const uint64_t kEdges[][5] = {{0, 0, 0, 0, 0},
                              {1, 0, 0, 0, 0},
                              {2, 0, 0, 0, 0},
                              {kOnes, kOnes, kOnes, kOnes, 0},
                              {0, 0, 0, 0, 1},
                              {1, 0, 0, 0, 1},
                              {2, 0, 0, 0, 1},
                              {0, 0, 0, 0, kOnes},
                              {kOnes, kOnes, kOnes, kOnes, kOnes},
                              {0, 0, 0, uint64_t{1} << 63, 0},
                              {uint64_t{1} << 63, 0, 0, 0, 0}};

std::mt19937_64 random_words(7);

}  // namespace

TEST(shifting_multiplies_by_a_power_of_two_modulo_n) {
  for (const auto& p : kEdges) {
    for (uint32_t e = 0; e < 512; ++e) CHECK(Equal(ShiftModN(p, e), Slow(p, e)));
  }
  for (int i = 0; i < 2000; ++i) {
    uint64_t p[5];
    for (auto& v : p) v = random_words();
    const uint32_t e = random_words() % 512;
    CHECK(Equal(ShiftModN(p, e), Slow(p, e)));
  }
}

TEST(two_has_order_512) {
  const uint64_t one[5] = {1, 0, 0, 0, 0};
  CHECK(IsTop(ShiftModN(one, 256)));
  for (uint32_t e = 1; e < 512; ++e) {
    const Residue r = ShiftModN(one, e);
    CHECK(!Equal(r, ShiftModN(one, 0)));
    CHECK(Equal(ShiftModN(r.limb, 512 - e), ShiftModN(one, 0)));
  }
}

TEST(subtraction_is_modulo_n) {
  const uint64_t zero[5] = {0, 0, 0, 0, 0}, one[5] = {1, 0, 0, 0, 0};
  CHECK(IsTop(SubtractModN(Residue{}, one)));                     // 0 - 1 = 2^256
  CHECK(IsTop(SubtractModN(ShiftModN(one, 256), zero)));          // 2^256 - 0
  const Residue a = SubtractModN(ShiftModN(one, 256), one);       // 2^256 - 1
  for (int i = 0; i < 4; ++i) CHECK_EQ(a.limb[i], kOnes);
  CHECK_EQ(a.limb[4], uint64_t{0});
  for (int i = 0; i < 1000; ++i) {  // (b + c) - b = c, by c - (-b) with -b = 2^256 b
    uint64_t b[5] = {random_words(), random_words(), random_words(), random_words(), 0};
    CHECK(IsZero(SubtractModN(ShiftModN(b, 0), b)));
    const Residue minus = SubtractModN(Residue{}, b);
    CHECK(Equal(minus, ShiftModN(b, 256)));
  }
}

TEST(mantissas_are_correct_to_a_unit) {
  std::vector<uint64_t> fractions = {0, 1, kOnes, uint64_t{1} << 63, (uint64_t{1} << 63) - 1};
  for (int i = 0; i < 100000; ++i) fractions.push_back(random_words());
  for (uint64_t z : fractions) {
    const long double exact = exp2l(ldexpl(static_cast<long double>(z), -64));
    const long double error = ldexpl(static_cast<long double>(Exp2Fraction(z)), -62) / exact - 1;
    CHECK(fabsl(error) < ldexpl(1, -56));
    for (int bits : {12, 16, 23, 30, 46}) {
      const uint64_t got = Mantissa(z, bits);
      CHECK(got >= uint64_t{1} << bits && got <= uint64_t{2} << bits);
      CHECK(fabsl(static_cast<long double>(got) - ldexpl(exact, bits)) < 0.51L);
    }
  }
}

namespace {

ExpParameters Parameters(int limbs, bool prime) {
  const int f = limbs == 1 ? 16 : 40;
  ExpParameters p{};
  p.limbs = limbs;
  u128 factor;
  const long double log2e = 1.44269504088896340735992468100189214L;
  if (prime) {
    const int extra = limbs == 1 ? 13 : 24;
    p.mantissa = limbs == 1 ? 12 : 23;
    p.offset = limbs == 1 ? 20 : 47;
    p.point = f + extra;
    factor = static_cast<u128>(ldexpl(log2e, extra));
  } else {
    p.mantissa = limbs == 1 ? 30 : 46;
    p.offset = limbs == 1 ? 110 : 66;
    factor = static_cast<u128>(ldexpl(log2e, 64 * limbs - 9 - f));
  }
  p.drop = p.offset + 2 * p.mantissa - f;
  p.factor[0] = static_cast<uint64_t>(factor);
  p.factor[1] = static_cast<uint64_t>(factor >> 64);
  return p;
}

// One element through the dealer and both evaluators: y1 + y2 (and the wrap) against expl.
long double Error(const ExpParameters& p, bool prime, double x) {
  const int f = p.limbs == 1 ? 16 : 40;
  uint64_t l1[2], l2[2], m[2], pad[4], message[4], y1[2], y2[2], low1, low2;
  for (auto* words : {l1, l2}) words[0] = random_words(), words[1] = random_words();
  for (auto& v : pad) v = random_words();
  const __int128 ring = static_cast<__int128>(ldexp(x, f));
  const auto wide = [](const uint64_t* w) { return u128(w[1]) << 64 | w[0]; };
  if (p.limbs == 1) {
    m[0] = static_cast<uint64_t>(ring) + l1[0] + l2[0];
  } else {
    const u128 v = static_cast<u128>(ring) + wide(l1) + wide(l2);
    m[0] = static_cast<uint64_t>(v);
    m[1] = static_cast<uint64_t>(v >> 64);
  }
  if (prime) {
    PrimeDealRange(p, l1, l2, pad, message, 0, 1);
    PrimeShareRange(p, m, pad, false, y1, &low1, 0, 1);
    PrimeShareRange(p, m, message, true, y2, &low2, 0, 1);
  } else {
    ExpDealRange(p, l1, l2, pad, message, 0, 1);
    ExpShareRange(p, m, pad, false, y1, 0, 1);
    ExpShareRange(p, m, message, true, y2, 0, 1);
  }
  u128 y = p.limbs == 1 ? u128(y1[0] + y2[0]) : wide(y1) + wide(y2);
  if (prime && !(low1 && low2)) {
    const u128 modulus = p.limbs == 1 ? (u128(1) << 61) - 1 : (u128(1) << 127) - 1;
    y -= (modulus >> p.drop) + 1;
  }
  const long double got = p.limbs == 1
                              ? static_cast<long double>(static_cast<int64_t>(y))
                              : static_cast<long double>(static_cast<__int128>(y));
  const long double exact = ldexpl(expl(ldexpl(static_cast<long double>(ring), -f)), f);
  return (fabsl(got - exact) - 1.001L) / exact;
}

}  // namespace

TEST(shares_add_up_to_the_exponential) {
  for (int limbs : {1, 2}) {
    for (bool prime : {false, true}) {
      const ExpParameters p = Parameters(limbs, prime);
      const double low = (1 - p.offset) * 0.6931471806 + 0.001;
      const double high = prime ? (limbs == 1 ? 10.3 : 22.1) : (limbs == 1 ? 31.8 : 40.1);
      const long double bound = prime ? (limbs == 1 ? 1e-3L : 1e-6L) : (limbs == 1 ? 4e-9L : 6e-14L);
      std::uniform_real_distribution<double> uniform(low, high);
      for (int i = 0; i < 20000; ++i) CHECK(Error(p, prime, uniform(random_words)) < bound);
      for (double x : {0.0, 1.0, -1.0, low, high}) CHECK(Error(p, prime, x) < bound);
    }
  }
}

TEST(inner_products_are_right_modulo_the_prime_for_any_words) {
  const u128 p = (u128(1) << 61) - 1;
  const uint64_t ends[] = {0, 1, uint64_t(p) - 1, uint64_t(p), uint64_t(p) + 1, ~uint64_t{0}};
  for (int round = 0; round < 200; ++round) {
    uint64_t r[9], v[9], before = random_words();
    for (int i = 0; i < 9; ++i) {
      r[i] = round < 100 ? ends[random_words() % 6] : random_words();
      v[i] = round < 100 ? ends[random_words() % 6] : random_words();
    }
    if (round < 6) before = ends[round];
    for (int n : {0, 1, 9}) {
      u128 sum = before % p;
      for (int i = 0; i < n; ++i) sum = (sum + u128(r[i] % p) * (v[i] % p)) % p;
      CHECK(InnerProduct61(before, r, v, n) == static_cast<uint64_t>(sum));
    }
  }
}
