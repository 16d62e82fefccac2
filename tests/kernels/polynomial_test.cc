// The two evaluators' shares add up to the polynomial's value, whatever the masks.
#include "protocols/kernels/core/polynomial.h"

#include <cstdint>
#include <random>
#include <vector>

#include "protocols/kernels/core/multiword.h"
#include "tests/kernels/check.h"

using namespace tfe_bench;

namespace {

// One whose widths are those of the terms after the first; none: all of the modulus.
MaskedPolynomial Of(std::vector<int> bits, std::vector<int> degrees, int modulus_bits, int drop,
                    std::vector<int> widths = {}) {
  MaskedPolynomial p;
  p.bits = bits;
  p.degrees = degrees;
  p.modulus_bits = modulus_bits;
  p.drop = drop;
  if (widths.empty()) {
    int terms = 1;
    for (const int degree : degrees) terms *= degree + 1;
    widths.assign(terms - 1, modulus_bits);
  }
  p.widths = {0};
  p.widths.insert(p.widths.end(), widths.begin(), widths.end());
  return p;
}

// |x| < 2^(k-2), its ends and zero often among them.
int64_t Small(std::mt19937_64& random, int k) {
  const int64_t limit = int64_t{1} << (k - 2);
  switch (random() % 8) {
    case 0: return limit - 1;
    case 1: return -limit + 1;
    case 2: return 0;
    default: return static_cast<int64_t>(random() % (2 * limit - 1)) - limit + 1;
  }
}

// Evaluates over `n` elements in two parts; the shares' sums mod 2^(modulus - drop).
std::vector<uint64_t> Sums(const MaskedPolynomial& p, const std::vector<std::vector<int64_t>>& x,
                           std::mt19937_64& random) {
  const int64_t n = x[0].size(), words = p.record_words();
  std::vector<std::vector<uint64_t>> lam(x.size()), m(x.size());
  std::vector<const uint64_t*> lams, ms;
  for (size_t i = 0; i < x.size(); ++i) {
    for (int64_t e = 0; e < n; ++e) {
      // The bits above the factor's ring are noise; masks of 0 and of all ones are the edges.
      const uint64_t mask = random() % 5 ? random() : random() % 2 ? 0 : ~uint64_t{0};
      lam[i].push_back(mask);
      const uint64_t noise = p.bits[i] < 64 ? random() << p.bits[i] : 0;
      m[i].push_back(static_cast<uint64_t>(x[i][e]) + mask + noise);
    }
    lams.push_back(lam[i].data());
    ms.push_back(m[i].data());
  }
  std::vector<uint64_t> mask(n * words), dealt, y1(n), y2(n);
  for (auto& w : mask) w = random();
  dealt = mask;
  const int64_t half = n / 2;
  p.Deal(lams.data(), 0, half, dealt.data());
  p.Deal(lams.data(), half, n, dealt.data() + half * words);
  p.Share(true, ms.data(), 0, n, mask.data(), y1.data());
  p.Share(false, ms.data(), 0, half, dealt.data(), y2.data());
  p.Share(false, ms.data(), half, n, dealt.data() + half * words, y2.data());
  for (int64_t e = 0; e < n; ++e) y1[e] += y2[e];
  return y1;
}

}  // namespace

TEST(powers_up_to_degree_five_are_exact) {
  std::mt19937_64 random(1);
  for (int degree = 1; degree <= 5; ++degree) {
    MaskedPolynomial p = Of({13}, {degree}, 64 + 40, 40);  // p * 2^40, exactly
    std::vector<int64_t> a(degree + 1);
    for (auto& c : a) c = static_cast<int64_t>(random() % 200) - 100;
    for (int64_t c : a) {
      const auto word = Multiword<2>::Of(c) << 40;
      p.coefficients.insert(p.coefficients.end(), word.word, word.word + 2);
    }
    CHECK_EQ(p.Prepare(true), "");
    std::vector<std::vector<int64_t>> x(1);
    for (int i = 0; i < 500; ++i) x[0].push_back(Small(random, 13));
    const auto sums = Sums(p, x, random);
    for (int i = 0; i < 500; ++i) {
      uint64_t want = 0;
      for (int j = degree; j >= 0; --j) {
        want = want * static_cast<uint64_t>(x[0][i]) + static_cast<uint64_t>(a[j]);
      }
      CHECK_EQ(sums[i], want);
    }
  }
}

TEST(several_elements_at_a_time_give_what_single_ones_give) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    const int degree = 1 + static_cast<int>(random() % (round % 10 ? 6 : kMaxDegree));
    const int bits = 3 + static_cast<int>(random() % 60);
    const int modulus_bits = round % 7 ? 2 + static_cast<int>(random() % 63) : 64;
    MaskedPolynomial p =
        Of({bits}, {degree}, modulus_bits, static_cast<int>(random() % modulus_bits));
    for (int t = 1; t <= degree; ++t) {
      if (random() % 3 == 0) p.widths[t] = 1 + static_cast<int>(random() % p.modulus_bits);
    }
    if (degree > 1 && random() % 4 == 0) p.widths[1] = 0;
    for (int t = 0; t <= degree; ++t) p.coefficients.push_back(random());
    CHECK_EQ(p.Prepare(true), "");
    const int64_t n = 1 + static_cast<int64_t>(random() % 40), words = p.record_words();
    std::vector<uint64_t> in(n), records(n * words);
    for (auto& v : in) v = random() % 4 ? random() : random() % 2 ? 0 : ~uint64_t{0};
    for (auto& v : records) v = random();
    const uint64_t* const values = in.data();
    auto at_once = records, singly = records;
    p.Deal(&values, 0, n, at_once.data());
    for (int64_t e = 0; e < n; ++e) p.Deal(&values, e, e + 1, singly.data() + e * words);
    CHECK(at_once == singly);
    for (const bool first : {true, false}) {
      std::vector<uint64_t> y(n), z(n);
      p.Share(first, &values, 0, n, records.data(), y.data());
      for (int64_t e = 0; e < n; ++e) {
        p.Share(first, &values, e, e + 1, records.data() + e * words, z.data());
      }
      // (what lies above the result's bits is of no use)
      const int kept = p.modulus_bits - p.drop;
      const uint64_t low = kept == 64 ? ~uint64_t{0} : (uint64_t{1} << kept) - 1;
      for (int64_t e = 0; e < n; ++e) CHECK_EQ(y[e] & low, z[e] & low);
    }
  }
}

TEST(products_of_two_and_three_factors_are_rounded_to_a_neighbor) {
  std::mt19937_64 random(2);
  for (int factors = 2; factors <= 3; ++factors) {
    const int all[] = {30, 21, 12};
    const int terms = 1 << factors;
    MaskedPolynomial p = Of({all, all + factors}, std::vector<int>(factors, 1), 64 + 17, 17);
    p.coefficients.assign(2 * terms, 0);
    p.coefficients[2 * (terms - 1)] = 1;
    CHECK_EQ(p.Prepare(true), "");
    std::vector<std::vector<int64_t>> x(factors);
    for (int i = 0; i < 1000; ++i) {
      for (int f = 0; f < factors; ++f) x[f].push_back(Small(random, all[f]));
    }
    const auto sums = Sums(p, x, random);
    for (int i = 0; i < 1000; ++i) {
      __int128 product = 1;
      for (int f = 0; f < factors; ++f) product *= x[f][i];
      const int64_t down = static_cast<int64_t>(product >> 17);
      const uint64_t above = sums[i] - static_cast<uint64_t>(down);
      CHECK(above == 0 || (above == 1 && (product & ((1 << 17) - 1))));
    }
  }
}

TEST(narrow_fields_cost_what_their_rounding_costs) {
  // x^2 / 2^20 with the square's mask dealt without its low 18 bits: a quarter of a unit off.
  std::mt19937_64 random(3);
  MaskedPolynomial p = Of({40}, {2}, 84, 20, {84, 84 - 18});
  p.coefficients.assign(6, 0);
  p.coefficients[4] = 1;
  CHECK_EQ(p.Prepare(true), "");
  std::vector<std::vector<int64_t>> x(1);
  for (int i = 0; i < 2000; ++i) x[0].push_back(Small(random, 40));
  const auto sums = Sums(p, x, random);
  for (int i = 0; i < 2000; ++i) {
    const __int128 square = static_cast<__int128>(x[0][i]) * x[0][i];
    // in units of 2^-20 of a result: one for the rounding of the shares, 1/8 for the dealer's
    const __int128 off = static_cast<__int128>(static_cast<int64_t>(sums[i])) * (1 << 20) - square;
    const __int128 limit = (1 << 20) + (1 << 17);
    CHECK(-limit < off && off < limit);
  }
}

TEST(bits_outside_the_fields_stay_mask) {
  MaskedPolynomial p = Of({10}, {1}, 70, 3);
  CHECK_EQ(p.Prepare(false), "");
  CHECK_EQ(p.record_words(), 3);
  const uint64_t lam[] = {5};
  const uint64_t* lams[] = {lam};
  uint64_t record[] = {1, 2, ~uint64_t{0}};
  p.Deal(lams, 0, 1, record);
  CHECK_EQ(record[2] >> 12, ~uint64_t{0} >> 12);
}

TEST(what_does_not_fit_is_refused) {
  MaskedPolynomial good = Of({10}, {2}, 100, 20, {100, 90});
  CHECK_EQ(good.Prepare(false), "");
  CHECK(!good.Prepare(true).empty());  // no coefficients
  for (MaskedPolynomial bad :
       {Of({63}, {2}, 100, 20, {100, 90}), Of({10}, {25}, 100, 20, {100, 90}),
        Of({10}, {2}, 257, 20, {100, 90}), Of({10}, {2}, 100, 20, {101, 90}),
        Of({10}, {2}, 100, 20, {0, 0})}) {
    CHECK(!bad.Prepare(false).empty());
  }
}
