// Multiword integers agree with 128-bit ones and with the laws of the ring; fields stay separate.
#include "protocols/kernels/core/multiword.h"

#include <cstdint>
#include <random>
#include <vector>

#include "tests/kernels/check.h"

using namespace tfe_bench;

using Wide = unsigned __int128;

template <int n>
bool Equal(const Multiword<n>& a, const Multiword<n>& b) {
  for (int i = 0; i < n; ++i) {
    if (a.word[i] != b.word[i]) return false;
  }
  return true;
}

template <int n>
Multiword<n> Random(std::mt19937_64& random) {
  Multiword<n> x;
  // All zeros and all ones make carries run.
  for (int i = 0; i < n; ++i) x.word[i] = random() % 4 ? random() : random() % 2 ? ~uint64_t{0} : 0;
  return x;
}

Wide Whole(const Multiword<2>& x) { return Wide{x.word[1]} << 64 | x.word[0]; }

TEST(two_words_are_128_bit_arithmetic) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    const auto a = Random<2>(random), b = Random<2>(random);
    auto sum = a, difference = a;
    sum += b;
    difference -= b;
    CHECK(Whole(sum) == Whole(a) + Whole(b));
    CHECK(Whole(difference) == Whole(a) - Whole(b));
    CHECK(Whole(a * b) == Whole(a) * Whole(b));
    const int64_t f = static_cast<int64_t>(b.word[0]);
    CHECK(Whole(a * f) == Whole(a) * static_cast<Wide>(static_cast<__int128>(f)));
    const int shift = random() % 128;
    CHECK(Whole(a << shift) == Whole(a) << shift);
    CHECK(Whole(a >> shift) == Whole(a) >> shift);
  }
}

template <int n>
void Laws(std::mt19937_64& random) {
  for (int round = 0; round < 2000; ++round) {
    const auto a = Random<n>(random), b = Random<n>(random), c = Random<n>(random);
    auto sum = b;
    sum += c;
    auto products = a * b;
    products += a * c;
    CHECK(Equal(a * sum, products));
    const int64_t f = static_cast<int64_t>(random());
    CHECK(Equal(a * f, a * Multiword<n>::Of(f)));
    const int shift = random() % (64 * n);
    CHECK(Equal(a << shift, a * (Multiword<n>::Of(1) << shift)));
    CHECK(Equal((a << shift) >> shift << shift, a << shift));
    auto zero = a;
    zero -= a;
    CHECK(Equal(zero, Multiword<n>::Of(0)));
  }
}

TEST(more_words_obey_the_laws_of_the_ring) {
  std::mt19937_64 random(2);
  Laws<1>(random);
  Laws<3>(random);
  Laws<4>(random);
}

TEST(fields_of_any_width_stay_apart) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint64_t> record(24, 0), before;
    std::vector<int> offset, width;
    int next = random() % 64;
    while (next + 256 <= 64 * 24) {
      offset.push_back(next);
      width.push_back(1 + random() % 256);
      next += width.back();
    }
    std::vector<Multiword<4>> values;
    for (auto& w : record) w = random();
    for (size_t i = 0; i < offset.size(); ++i) {
      values.push_back(Random<4>(random));
      WriteField<4>(record.data(), offset[i], width[i], values[i]);
    }
    for (size_t i = 0; i < offset.size(); ++i) {
      const int left = 256 - width[i];
      CHECK(Equal(ReadField<4>(record.data(), offset[i], width[i]),
                  left ? (values[i] << left) >> left : values[i]));
    }
    // What is written back changes nothing.
    before = record;
    const size_t i = random() % offset.size();
    WriteField<4>(record.data(), offset[i], width[i], values[i]);
    CHECK(before == record);
  }
}
