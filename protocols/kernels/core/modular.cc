#include "protocols/kernels/core/modular.h"

#include <immintrin.h>

namespace tfe_bench {
namespace {

using u128 = unsigned __int128;

inline uint64_t MulHigh(uint64_t a, uint64_t b) { return static_cast<uint64_t>((u128(a) * b) >> 64); }

inline unsigned char Add(unsigned char carry, uint64_t a, uint64_t b, uint64_t* out) {
  unsigned long long sum;
  carry = _addcarry_u64(carry, a, b, &sum);
  *out = sum;
  return carry;
}

inline unsigned char Sub(unsigned char borrow, uint64_t a, uint64_t b, uint64_t* out) {
  unsigned long long difference;
  borrow = _subborrow_u64(borrow, a, b, &difference);
  *out = difference;
  return borrow;
}

// Adds N = 2^256 + 1 where mask is all ones, nothing where it is 0.
inline void AddN(uint64_t r[5], uint64_t mask) {
  unsigned char c = Add(0, r[0], mask & 1, &r[0]);
  for (int i = 1; i < 4; ++i) c = Add(c, r[i], 0, &r[i]);
  Add(c, r[4], mask & 1, &r[4]);
}

inline u128 Load(const uint64_t* words) { return u128(words[1]) << 64 | words[0]; }
inline void Store(u128 v, uint64_t* words) {
  words[0] = static_cast<uint64_t>(v);
  words[1] = static_cast<uint64_t>(v >> 64);
}

// v * factor in the ring: the exponent to the base 2^9 in its top bits, and the 64 bits below them.
struct Exponent {
  uint32_t whole;  // modulo 512
  uint64_t fraction;
};

inline Exponent Scale64(const ExpParameters& p, uint64_t v) {
  const uint64_t x = v * p.factor[0];
  return {static_cast<uint32_t>(x >> 55), x << 9};
}

inline Exponent Scale128(const ExpParameters& p, u128 v) {
  const u128 x = v * Load(p.factor);
  return {static_cast<uint32_t>(x >> 119), static_cast<uint64_t>((x << 9) >> 64)};
}

inline Exponent Scale(const ExpParameters& p, const uint64_t* v) {
  return p.limbs == 1 ? Scale64(p, *v) : Scale128(p, Load(v));
}

inline Exponent ScaleMinusSum(const ExpParameters& p, const uint64_t* a, const uint64_t* b) {
  return p.limbs == 1 ? Scale64(p, -(*a + *b)) : Scale128(p, -(Load(a) + Load(b)));
}

}  // namespace

uint64_t Exp2Fraction(uint64_t z) {
  // (2^z - 1) / z at Chebyshev nodes of [0, 1), degree 10, times 2^62.
  constexpr uint64_t kCoefficients[] = {
      0x2c5c85fdf473deb7, 0x0f5fdeffc1627f9b, 0x038d611ae09f49d5, 0x009d955b7d242b17,
      0x0015d87fecf83f7b, 0x000286120cb906af, 0x00003ff9c8698466, 0x0000058a79c0eb20,
      0x0000006de8916773, 0x000000071fa99fb9, 0x00000000a84f6f97};
  uint64_t r = kCoefficients[10];
  for (int i = 9; i >= 0; --i) r = kCoefficients[i] + MulHigh(r, z);
  return (uint64_t{1} << 62) + MulHigh(r, z);
}

Residue ShiftModN(const uint64_t p[5], uint32_t e) {
  uint64_t t[9] = {p[0], p[1], p[2], p[3], p[4], 0, 0, 0, 0};
  const uint64_t one = -static_cast<uint64_t>(e >> 6 & 1), two = -static_cast<uint64_t>(e >> 7 & 1);
  for (int i = 8; i >= 1; --i) t[i] ^= (t[i] ^ t[i - 1]) & one;
  t[0] &= ~one;
  for (int i = 8; i >= 2; --i) t[i] ^= (t[i] ^ t[i - 2]) & two;
  t[1] &= ~two;
  t[0] &= ~two;
  const int bits = e & 63;
  for (int i = 8; i >= 1; --i) t[i] = t[i] << bits | t[i - 1] >> 1 >> (63 - bits);
  t[0] <<= bits;
  // 2^256 = -1 and 2^512 = 1: t = low - high + top.
  Residue r;
  uint64_t* d = r.limb;
  unsigned char c = Add(0, t[0], t[8], &d[0]);
  for (int i = 1; i < 4; ++i) c = Add(c, t[i], 0, &d[i]);
  d[4] = c;
  c = 0;
  for (int i = 0; i < 4; ++i) c = Sub(c, d[i], t[4 + i], &d[i]);
  d[4] -= c;
  // From [-2^256, 2^256 + 2^64) to [0, 2^256]: below 0 add N, above 2^256 subtract it.
  AddN(d, -(d[4] >> 63));
  const uint64_t low = d[0] | d[1] | d[2] | d[3];
  const uint64_t over = d[4] & ((low | -low) >> 63);
  c = Sub(0, d[0], over, &d[0]);
  for (int i = 1; i < 4; ++i) c = Sub(c, d[i], 0, &d[i]);
  d[4] -= over;  // low > 0 where over is 1, so nothing is borrowed
  // 2^256 once more: negate, 0 stays 0.
  const uint64_t any = low | d[4];
  const uint64_t flip = -static_cast<uint64_t>(e >> 8 & 1);
  uint64_t n[5];
  c = Sub(0, 1, d[0], &n[0]);
  for (int i = 1; i < 4; ++i) c = Sub(c, 0, d[i], &n[i]);
  Sub(c, 1, d[4], &n[4]);
  const uint64_t nonzero = -((any | -any) >> 63);
  for (int i = 0; i < 5; ++i) d[i] ^= (d[i] ^ (n[i] & nonzero)) & flip;
  return r;
}

Residue SubtractModN(const Residue& a, const uint64_t b[4]) {
  Residue r;
  unsigned char c = 0;
  for (int i = 0; i < 4; ++i) c = Sub(c, a.limb[i], b[i], &r.limb[i]);
  Sub(c, a.limb[4], 0, &r.limb[4]);
  AddN(r.limb, -(r.limb[4] >> 63));
  return r;
}

void ExpDealRange(const ExpParameters& p, const uint64_t* l1, const uint64_t* l2,
                  const uint64_t* pad, uint64_t* message, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Exponent x = ScaleMinusSum(p, l1 + i * p.limbs, l2 + i * p.limbs);
    const uint64_t mantissa[5] = {Mantissa(x.fraction, p.mantissa), 0, 0, 0, 0};
    const Residue a = ShiftModN(mantissa, (x.whole + p.offset) & 511);
    const Residue rest = SubtractModN(a, pad + 4 * i);
    for (int k = 0; k < 4; ++k) message[4 * i + k] = rest.limb[k];
  }
}

void ExpShareRange(const ExpParameters& p, const uint64_t* m, const uint64_t* share, bool second,
                   uint64_t* y, int64_t begin, int64_t end) {
  const int words = p.drop / 64, bits = p.drop % 64;
  for (int64_t i = begin; i < end; ++i) {
    const Exponent x = Scale(p, m + i * p.limbs);
    const uint64_t mantissa = Mantissa(x.fraction, p.mantissa);
    const uint64_t* a = share + 4 * i;
    uint64_t product[5];
    u128 carry = 0;
    for (int k = 0; k < 4; ++k) {
      carry += u128(a[k]) * mantissa;
      product[k] = static_cast<uint64_t>(carry);
      carry >>= 64;
    }
    product[4] = static_cast<uint64_t>(carry);
    const Residue h = ShiftModN(product, x.whole);
    uint64_t v[7] = {h.limb[0], h.limb[1], h.limb[2], h.limb[3], h.limb[4], 0, 0};
    if (second) {  // N - h
      unsigned char c = Sub(0, 1, v[0], &v[0]);
      for (int k = 1; k < 4; ++k) c = Sub(c, 0, v[k], &v[k]);
      Sub(c, 1, v[4], &v[4]);
    }
    for (int k = 0; k < p.limbs; ++k) {
      const uint64_t above = bits == 0 ? 0 : v[words + k + 1] << (64 - bits);
      y[i * p.limbs + k] = v[words + k] >> bits | above;
    }
    if (second) {
      if (p.limbs == 1) {
        y[i] = -y[i];
      } else {
        Store(-Load(y + 2 * i), y + 2 * i);
      }
    }
  }
}

void ExpSelectDealRange(const ExpParameters& p, const uint64_t* beta, const uint64_t* l1,
                        const uint64_t* l2, const uint64_t* pad, uint64_t* message, int64_t begin,
                        int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = i - begin;
    const Exponent x = ScaleMinusSum(p, l1 + at, l2 + at);
    const uint64_t bit = 0 - (beta[i / 64] >> (i % 64) & 1);
    const uint64_t mantissa = Mantissa(x.fraction, p.mantissa);
    for (int o = 0; o < 2; ++o) {
      const uint64_t factor[5] = {mantissa & (o ? ~bit : bit), 0, 0, 0, 0};
      const int64_t to = kSelectWords * at + 4 * o;
      const Residue rest = SubtractModN(ShiftModN(factor, (x.whole + p.offset) & 511), pad + to);
      for (int k = 0; k < 4; ++k) message[to + k] = rest.limb[k];
    }
  }
}

void ExpSelectRange(const uint64_t* masked_bits, const uint64_t* given, uint64_t* share, int64_t begin,
                    int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t o = 0 - (masked_bits[i / 64] >> (i % 64) & 1);
    const uint64_t* words = given + kSelectWords * (i - begin);
    for (int k = 0; k < 4; ++k) share[4 * (i - begin) + k] = (words[k] & ~o) | (words[k + 4] & o);
  }
}

namespace {

// ---- Mersenne primes: 2 has order q, so that multiplying by 2^e is a rotation of q bits.

constexpr u128 kP127 = (u128(1) << 127) - 1;

inline u128 Canonical127(u128 v) {
  v = (v & kP127) + (v >> 127);  // at most p + 1
  const u128 less = v - kP127;
  return less + (kP127 & -(less >> 127));
}

// A shift by a secret amount below 128 in steps that take the same time for each.
inline u128 ShiftLeft(u128 v, uint32_t e) {
  const u128 word = -u128(e >> 6 & 1);
  v ^= (v ^ (v << 64)) & word;
  const int bits = e & 63;
  const uint64_t low = static_cast<uint64_t>(v), high = static_cast<uint64_t>(v >> 64);
  return u128(high << bits | low >> 1 >> (63 - bits)) << 64 | low << bits;
}

inline u128 ShiftRight(u128 v, uint32_t e) {
  const u128 word = -u128(e >> 6 & 1);
  v ^= (v ^ (v >> 64)) & word;
  const int bits = e & 63;
  const uint64_t low = static_cast<uint64_t>(v), high = static_cast<uint64_t>(v >> 64);
  return u128(high >> bits) << 64 | low >> bits | high << 1 << (63 - bits);
}

inline uint64_t Rotate61(uint64_t v, uint32_t e) { return (v << e & kP61) | v >> (61 - e); }
inline u128 Rotate127(u128 v, uint32_t e) {
  return (ShiftLeft(v, e) & kP127) | ShiftRight(v, 127 - e);
}

struct Power {
  uint32_t e;  // modulo q
  uint64_t mantissa;
};

// 2^(x / 2^point), x signed.
inline Power Power61(const ExpParameters& p, uint64_t x) {
  const int64_t whole = static_cast<int64_t>(x) >> p.point;
  const int64_t e = whole % 61;
  return {static_cast<uint32_t>(e + (61 & (e >> 63))),
          Mantissa(x << (64 - p.point), p.mantissa)};
}

inline Power Power127(const ExpParameters& p, u128 x) {
  const uint64_t negative = static_cast<uint64_t>(x >> 127);
  // Signed x, shifted: its sign in all the bits that the shift frees.
  const u128 whole = x >> p.point | (-u128(negative) & ~(~u128(0) >> p.point));
  // 2^63 = 1 modulo 127, and a negative number was written 2^128 = 4 too high.
  constexpr uint64_t kLow = (uint64_t{1} << 63) - 1;
  const uint64_t low = static_cast<uint64_t>(whole) & kLow;
  const uint64_t middle = static_cast<uint64_t>(whole >> 63) & kLow;
  const uint64_t high = static_cast<uint64_t>(whole >> 126);
  const uint64_t sum = low % 127 + middle % 127 + high + 127 - 4 * negative;
  return {static_cast<uint32_t>(sum % 127),
          Mantissa(static_cast<uint64_t>(x << (128 - p.point) >> 64), p.mantissa)};
}

inline u128 Offset(const ExpParameters& p) { return u128(p.offset) << p.point; }

}  // namespace

void PrimeDealRange(const ExpParameters& p, const uint64_t* l1, const uint64_t* l2,
                    const uint64_t* pad, uint64_t* message, int64_t begin, int64_t end) {
  if (p.limbs == 1) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t x = -(l1[i] + l2[i]) * p.factor[0] + static_cast<uint64_t>(Offset(p));
      const Power a = Power61(p, x);
      const uint64_t u = Canonical61(pad[i] & kP61);
      message[i] = Canonical61(Rotate61(a.mantissa, a.e) + kP61 - u);
    }
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    const u128 x = -(Load(l1 + 2 * i) + Load(l2 + 2 * i)) * Load(p.factor) + Offset(p);
    const Power a = Power127(p, x);
    const u128 u = Canonical127(Load(pad + 2 * i) & kP127);
    Store(Canonical127(Rotate127(a.mantissa, a.e) + (kP127 - u)), message + 2 * i);
  }
}

void PrimeShareRange(const ExpParameters& p, const uint64_t* m, const uint64_t* share, bool second,
                     uint64_t* y, uint64_t* low, int64_t begin, int64_t end) {
  const u128 up = second ? (u128(1) << p.drop) - 1 : 0;
  if (p.limbs == 1) {
    for (int64_t i = begin; i < end; ++i) {
      const Power b = Power61(p, m[i] * p.factor[0]);
      const u128 product = u128(Canonical61(share[i] & kP61)) * b.mantissa;
      const uint64_t w = Canonical61(
          Rotate61(Canonical61((static_cast<uint64_t>(product) & kP61) +
                               static_cast<uint64_t>(product >> 61)), b.e));
      y[i] = (w + static_cast<uint64_t>(up)) >> p.drop;
      low[i] = (w - (kP61 >> 1)) >> 63;
    }
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    const Power b = Power127(p, Load(m + 2 * i) * Load(p.factor));
    const u128 u = Canonical127(Load(share + 2 * i) & kP127);
    const u128 bottom = u128(static_cast<uint64_t>(u)) * b.mantissa;
    const u128 upper = u128(static_cast<uint64_t>(u >> 64)) * b.mantissa + (bottom >> 64);
    const u128 folded = (upper << 64 & kP127) | static_cast<uint64_t>(bottom);
    const u128 w = Rotate127(Canonical127(folded + (upper >> 63)), b.e);
    Store((w + up) >> p.drop, y + 2 * i);
    low[i] = static_cast<uint64_t>((w - (kP127 >> 1)) >> 127);
  }
}

uint64_t InnerProduct61(uint64_t before, const uint64_t* r, const uint64_t* v, int64_t n) {
  uint64_t sum = Canonical61(before);
  for (int64_t i = 0; i < n; ++i) {
    const u128 product = u128(Canonical61(r[i])) * Canonical61(v[i]);  // below 2^122
    sum += (static_cast<uint64_t>(product) & kP61) + static_cast<uint64_t>(product >> 61);
    sum = (sum & kP61) + (sum >> 61);
  }
  return Canonical61(sum);
}

}  // namespace tfe_bench
