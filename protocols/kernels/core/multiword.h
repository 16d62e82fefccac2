// Integers modulo 2^(64 n) as n little-endian words, and fields of any width within records of
// words.  Everything here runs in constant time.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_MULTIWORD_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_MULTIWORD_H_

#include <cstdint>

namespace tfe_bench {

constexpr int kMaxLimbs = 4;

template <int n>
struct Multiword {
  uint64_t word[n];

  static Multiword Of(int64_t value) {
    Multiword x;
    x.word[0] = static_cast<uint64_t>(value);
    for (int i = 1; i < n; ++i) x.word[i] = static_cast<uint64_t>(value >> 63);
    return x;
  }

  Multiword& operator+=(const Multiword& y) {
    unsigned __int128 carry = 0;
    for (int i = 0; i < n; ++i) {
      carry += static_cast<unsigned __int128>(word[i]) + y.word[i];
      word[i] = static_cast<uint64_t>(carry);
      carry >>= 64;
    }
    return *this;
  }

  Multiword& operator-=(const Multiword& y) {
    uint64_t borrow = 0;
    for (int i = 0; i < n; ++i) {
      const unsigned __int128 d = static_cast<unsigned __int128>(word[i]) - y.word[i] - borrow;
      word[i] = static_cast<uint64_t>(d);
      borrow = static_cast<uint64_t>(d >> 64) & 1;
    }
    return *this;
  }

  // Times a signed word: as unsigned, less the 2^64 that a negative one has too much.
  Multiword operator*(int64_t factor) const {
    const uint64_t f = static_cast<uint64_t>(factor);
    const uint64_t negative = static_cast<uint64_t>(factor >> 63);
    Multiword product, excess;
    uint64_t carry = 0;
    excess.word[0] = 0;
    for (int i = 0; i < n; ++i) {
      const unsigned __int128 p = static_cast<unsigned __int128>(word[i]) * f + carry;
      product.word[i] = static_cast<uint64_t>(p);
      carry = static_cast<uint64_t>(p >> 64);
      if (i + 1 < n) excess.word[i + 1] = word[i] & negative;
    }
    product -= excess;
    return product;
  }

  Multiword operator*(const Multiword& y) const {
    Multiword product{};
    for (int i = 0; i < n; ++i) {
      uint64_t carry = 0;
      for (int j = 0; i + j < n; ++j) {
        const unsigned __int128 p =
            static_cast<unsigned __int128>(word[i]) * y.word[j] + product.word[i + j] + carry;
        product.word[i + j] = static_cast<uint64_t>(p);
        carry = static_cast<uint64_t>(p >> 64);
      }
    }
    return product;
  }

  // The shifts are by public amounts below 64 n.
  Multiword operator<<(int bits) const {
    Multiword y;
    const int skip = bits / 64, rest = bits % 64;
    for (int i = n - 1; i >= 0; --i) {
      const uint64_t high = i - skip >= 0 ? word[i - skip] : 0;
      const uint64_t low = i - skip >= 1 ? word[i - skip - 1] : 0;
      y.word[i] = rest ? high << rest | low >> (64 - rest) : high;
    }
    return y;
  }

  Multiword operator>>(int bits) const {  // zeros move in
    Multiword y;
    const int skip = bits / 64, rest = bits % 64;
    for (int i = 0; i < n; ++i) {
      const uint64_t low = i + skip < n ? word[i + skip] : 0;
      const uint64_t high = i + skip + 1 < n ? word[i + skip + 1] : 0;
      y.word[i] = rest ? low >> rest | high << (64 - rest) : low;
    }
    return y;
  }
};

// The `width` bits of a record from bit `offset` on, zero-extended; width is 1 to 64 n.
template <int n>
Multiword<n> ReadField(const uint64_t* record, int offset, int width) {
  Multiword<n> x{};
  const int first = offset / 64, shift = offset % 64;
  for (int i = 0; 64 * i < width; ++i) {
    const int left = width - 64 * i;
    uint64_t w = record[first + i] >> shift;
    // The next word is read only where the field reaches into it.
    if (shift && (left > 64 ? 64 : left) > 64 - shift) w |= record[first + i + 1] << (64 - shift);
    x.word[i] = left < 64 ? w & ((uint64_t{1} << left) - 1) : w;
  }
  return x;
}

// Writes the low `width` bits of x; all other bits of the record stay.
template <int n>
void WriteField(uint64_t* record, int offset, int width, const Multiword<n>& x) {
  const int first = offset / 64, shift = offset % 64;
  for (int i = 0; 64 * i < width; ++i) {
    const int left = width - 64 * i;
    const uint64_t mask = left < 64 ? (uint64_t{1} << left) - 1 : ~uint64_t{0};
    const uint64_t w = x.word[i] & mask;
    uint64_t* to = record + first + i;
    to[0] = (to[0] & ~(mask << shift)) | w << shift;
    if (shift && (left > 64 ? 64 : left) > 64 - shift) {
      to[1] = (to[1] & ~(mask >> (64 - shift))) | w >> (64 - shift);
    }
  }
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_MULTIWORD_H_
