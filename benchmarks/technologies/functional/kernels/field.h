// Integers modulo p = 2^255 - 19, as five limbs of 51 bits.
//
// Bounds: products, squares and differences' operands keep to what the comments say, and no
// function but Invert and SquareRootRatio takes long.  No branch and no index depends on a value.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_FIELD_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_FIELD_H_

#include <cstdint>
#include <cstring>

#include "benchmarks/technologies/functional/kernels/layout.h"

namespace tfe_bench {
namespace curve {

using uint128 = unsigned __int128;

constexpr uint64_t kLow51 = (uint64_t{1} << 51) - 1;

// Limbs are below 2^54 wherever a product reads them ("loose"); products have limbs below
// 2^51 + 2^13 ("tight"), sums of two tight ones below 2^53.
constexpr Field kZero = {{0, 0, 0, 0, 0}};
constexpr Field kOne = {{1, 0, 0, 0, 0}};
// d = -121665 / 121666, 2 d, sqrt(-1), 1 / sqrt(-1 - d) (RFC 9496, section 4.1).
constexpr Field kD = {
    {0x34dca135978a3, 0x1a8283b156ebd, 0x5e7a26001c029, 0x739c663a03cbb, 0x52036cee2b6ff}};
constexpr Field kTwiceD = {
    {0x69b9426b2f159, 0x35050762add7a, 0x3cf44c0038052, 0x6738cc7407977, 0x2406d9dc56dff}};
constexpr Field kRootOfMinusOne = {
    {0x61b274a0ea0b0, 0x0d5a5fc8f189d, 0x7ef5e9cbd0c60, 0x78595a6804c9e, 0x2b8324804fc1d}};
constexpr Field kInverseRoot = {
    {0x0fdaa805d40ea, 0x2eb482e57d339, 0x007610274bc58, 0x6510b613dc8ff, 0x786c8905cfaff}};

#ifdef TFE_BENCH_COUNT_PRODUCTS
inline uint64_t& CountOfProducts() {
  static thread_local uint64_t count = 0;
  return count;
}
inline void CountProduct() { ++CountOfProducts(); }
#else
inline void CountProduct() {}
#endif

// Tight a, b.
inline Field Add(const Field& a, const Field& b) {
  Field out;
  for (int i = 0; i < 5; ++i) out.limb[i] = a.limb[i] + b.limb[i];
  return out;
}

// a - b for a below 2^53 and b a sum of two tight ones at most: 4 p is added.
inline Field Sub(const Field& a, const Field& b) {
  Field out;
  out.limb[0] = a.limb[0] + 0x1fffffffffffb4 - b.limb[0];
  for (int i = 1; i < 5; ++i) out.limb[i] = a.limb[i] + 0x1ffffffffffffc - b.limb[i];
  return out;
}

inline Field Negate(const Field& a) { return Sub(kZero, a); }

inline Field Carry(uint128 r0, uint128 r1, uint128 r2, uint128 r3, uint128 r4) {
  Field out;
  r1 += static_cast<uint64_t>(r0 >> 51);
  r2 += static_cast<uint64_t>(r1 >> 51);
  r3 += static_cast<uint64_t>(r2 >> 51);
  r4 += static_cast<uint64_t>(r3 >> 51);
  const uint64_t low = (static_cast<uint64_t>(r0) & kLow51) + static_cast<uint64_t>(r4 >> 51) * 19;
  out.limb[0] = low & kLow51;
  out.limb[1] = (static_cast<uint64_t>(r1) & kLow51) + (low >> 51);
  out.limb[2] = static_cast<uint64_t>(r2) & kLow51;
  out.limb[3] = static_cast<uint64_t>(r3) & kLow51;
  out.limb[4] = static_cast<uint64_t>(r4) & kLow51;
  return out;
}

// Loose a, b.
inline Field Mul(const Field& a, const Field& b) {
  CountProduct();
  const uint64_t a0 = a.limb[0], a1 = a.limb[1], a2 = a.limb[2], a3 = a.limb[3], a4 = a.limb[4];
  const uint64_t b0 = b.limb[0], b1 = b.limb[1], b2 = b.limb[2], b3 = b.limb[3], b4 = b.limb[4];
  const uint64_t c1 = b1 * 19, c2 = b2 * 19, c3 = b3 * 19, c4 = b4 * 19;
  const auto times = [](uint64_t x, uint64_t y) { return static_cast<uint128>(x) * y; };
  return Carry(
      times(a0, b0) + times(a1, c4) + times(a2, c3) + times(a3, c2) + times(a4, c1),
      times(a0, b1) + times(a1, b0) + times(a2, c4) + times(a3, c3) + times(a4, c2),
      times(a0, b2) + times(a1, b1) + times(a2, b0) + times(a3, c4) + times(a4, c3),
      times(a0, b3) + times(a1, b2) + times(a2, b1) + times(a3, b0) + times(a4, c4),
      times(a0, b4) + times(a1, b3) + times(a2, b2) + times(a3, b1) + times(a4, b0));
}

// Loose a.
inline Field Square(const Field& a) {
  CountProduct();
  const uint64_t a0 = a.limb[0], a1 = a.limb[1], a2 = a.limb[2], a3 = a.limb[3], a4 = a.limb[4];
  const uint64_t d0 = 2 * a0, d1 = 2 * a1, c3 = a3 * 19, c4 = a4 * 19;
  const auto times = [](uint64_t x, uint64_t y) { return static_cast<uint128>(x) * y; };
  return Carry(times(a0, a0) + times(d1, c4) + times(2 * a2, c3),
               times(d0, a1) + times(2 * a2, c4) + times(a3, c3),
               times(d0, a2) + times(a1, a1) + times(2 * a3, c4),
               times(d0, a3) + times(d1, a2) + times(a4, c4),
               times(d0, a4) + times(d1, a3) + times(a2, a2));
}

inline Field SquareTimes(Field a, int n) {
  while (n-- > 0) a = Square(a);
  return a;
}

// Any a to a tight one.
inline Field Tighten(const Field& a) {
  Field out;
  out.limb[0] = (a.limb[0] & kLow51) + 19 * (a.limb[4] >> 51);
  for (int i = 1; i < 5; ++i) out.limb[i] = (a.limb[i] & kLow51) + (a.limb[i - 1] >> 51);
  return out;
}

// The one representation below p, as 32 bytes, little endian.
inline void ToBytes(const Field& a, uint8_t out[32]) {
  uint64_t t[5];
  std::memcpy(t, a.limb, sizeof(t));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 4; ++i) {
      t[i + 1] += t[i] >> 51;
      t[i] &= kLow51;
    }
    t[0] += 19 * (t[4] >> 51);
    t[4] &= kLow51;
  }
  // t < 2^255 + 2^13: it is p or more where adding 19 carries out of bit 255.
  uint64_t q = (t[0] + 19) >> 51;
  for (int i = 1; i < 5; ++i) q = (t[i] + q) >> 51;
  t[0] += 19 * q;
  for (int i = 0; i < 4; ++i) {
    t[i + 1] += t[i] >> 51;
    t[i] &= kLow51;
  }
  t[4] &= kLow51;
  const uint64_t words[4] = {t[0] | t[1] << 51, t[1] >> 13 | t[2] << 38, t[2] >> 26 | t[3] << 25,
                             t[3] >> 39 | t[4] << 12};
  std::memcpy(out, words, 32);
}

// Of 255 bits; the highest bit is ignored, and p to 2^255 - 1 are taken: see IsCanonical.
inline Field FromBytes(const uint8_t in[32]) {
  uint64_t w[4];
  std::memcpy(w, in, 32);
  return {{w[0] & kLow51, (w[0] >> 51 | w[1] << 13) & kLow51, (w[1] >> 38 | w[2] << 26) & kLow51,
           (w[2] >> 25 | w[3] << 39) & kLow51, (w[3] >> 12) & kLow51}};
}

inline bool IsCanonical(const uint8_t in[32]) {
  uint8_t again[32];
  ToBytes(FromBytes(in), again);
  return std::memcmp(in, again, 32) == 0;
}

// All ones where the condition (0 or 1) holds, behind the optimizer's back.
inline uint64_t Mask(uint64_t condition) {
  uint64_t mask = 0 - condition;
  __asm__("" : "+r"(mask));
  return mask;
}

inline void Assign(Field& a, const Field& b, uint64_t mask) {
  for (int i = 0; i < 5; ++i) a.limb[i] ^= (a.limb[i] ^ b.limb[i]) & mask;
}

// 1 where a number is odd ("negative", RFC 9496), else 0.
inline uint64_t IsNegative(const Field& a) {
  uint8_t bytes[32];
  ToBytes(a, bytes);
  return bytes[0] & 1;
}

inline uint64_t IsZero(const Field& a) {
  uint8_t bytes[32];
  ToBytes(a, bytes);
  uint64_t w[4];
  std::memcpy(w, bytes, 32);
  const uint64_t any = w[0] | w[1] | w[2] | w[3];
  return 1 ^ ((any | (0 - any)) >> 63);
}

inline uint64_t IsEqual(const Field& a, const Field& b) { return IsZero(Sub(a, b)); }

// Tight a; -a is loose.
inline void NegateIf(Field& a, uint64_t mask) { Assign(a, Negate(a), mask); }

// a^(2^250 - 1) and a^11.
inline Field Power250(const Field& a, Field* a11) {
  const Field a2 = Square(a);
  const Field a9 = Mul(a, SquareTimes(a2, 2));
  *a11 = Mul(a9, a2);
  const Field b5 = Mul(Square(*a11), a9);
  const Field b10 = Mul(SquareTimes(b5, 5), b5);
  const Field b20 = Mul(SquareTimes(b10, 10), b10);
  const Field b40 = Mul(SquareTimes(b20, 20), b20);
  const Field b50 = Mul(SquareTimes(b40, 10), b10);
  const Field b100 = Mul(SquareTimes(b50, 50), b50);
  const Field b200 = Mul(SquareTimes(b100, 100), b100);
  return Mul(SquareTimes(b200, 50), b50);
}

// a^(p - 2): 0 for 0.
inline Field Invert(const Field& a) {
  Field a11;
  const Field power = Power250(a, &a11);
  return Mul(SquareTimes(power, 5), a11);
}

// SQRT_RATIO_M1(1, v) of RFC 9496, section 4.2: whether 1 / v is a square, and its root >= 0 (else
// that of sqrt(-1) / v).
inline uint64_t InverseSquareRoot(const Field& v, Field* root) {
  const Field v3 = Mul(Square(v), v);
  const Field v7 = Mul(Square(v3), v);
  Field a11;
  const Field power = Mul(SquareTimes(Power250(v7, &a11), 2), v7);  // v7^((p - 5) / 8)
  Field r = Mul(v3, power);
  const Field check = Mul(v, Square(r));
  const Field minus = Negate(kOne);
  const uint64_t right = IsEqual(check, kOne);
  const uint64_t flipped = IsEqual(check, minus);
  const uint64_t flipped_i = IsEqual(check, Negate(kRootOfMinusOne));
  Assign(r, Mul(r, kRootOfMinusOne), Mask(flipped | flipped_i));
  NegateIf(r, Mask(IsNegative(r)));
  *root = Tighten(r);
  return right | flipped;
}

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_FIELD_H_
