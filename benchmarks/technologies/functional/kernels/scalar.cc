#include "benchmarks/technologies/functional/kernels/scalar.h"

#include <cstring>

namespace tfe_bench {
namespace curve {
namespace {

using uint128 = unsigned __int128;

// floor(2^512 / l)
constexpr uint64_t kReciprocal[5] = {0xed9ce5a30a2c131b, 0x2106215d086329a7, 0xffffffffffffffeb,
                                     0xffffffffffffffff, 0xf};
// 2^256 - 1 modulo l
constexpr Scalar kAllOnes = {
    {0xd6ec31748d98951c, 0xc6ef5bf4737dcf70, 0xfffffffffffffffe, 0x0fffffffffffffff}};

template <int N, int M>
void Multiply(const uint64_t (&a)[N], const uint64_t (&b)[M], uint64_t (&out)[N + M]) {
  std::memset(out, 0, sizeof(out));
  for (int i = 0; i < N; ++i) {
    uint64_t carry = 0;
    for (int j = 0; j < M; ++j) {
      const uint128 t = static_cast<uint128>(a[i]) * b[j] + out[i + j] + carry;
      out[i + j] = static_cast<uint64_t>(t);
      carry = static_cast<uint64_t>(t >> 64);
    }
    out[i + M] = carry;
  }
}

// a + b; the carry.
template <int N>
uint64_t AddTo(uint64_t (&a)[N], const uint64_t (&b)[N]) {
  uint64_t carry = 0;
  for (int i = 0; i < N; ++i) {
    const uint128 t = static_cast<uint128>(a[i]) + b[i] + carry;
    a[i] = static_cast<uint64_t>(t);
    carry = static_cast<uint64_t>(t >> 64);
  }
  return carry;
}

// a - b; the borrow.
template <int N>
uint64_t SubtractFrom(uint64_t (&a)[N], const uint64_t (&b)[N]) {
  uint64_t borrow = 0;
  for (int i = 0; i < N; ++i) {
    const uint128 t = static_cast<uint128>(a[i]) - b[i] - borrow;
    a[i] = static_cast<uint64_t>(t);
    borrow = static_cast<uint64_t>(t >> 64) & 1;
  }
  return borrow;
}

// a - l where a is l or more.
template <int N>
void SubtractOrderOnce(uint64_t (&a)[N]) {
  uint64_t order[N] = {}, less[N];
  std::memcpy(order, kOrder.word, sizeof(kOrder.word));
  std::memcpy(less, a, sizeof(a));
  uint64_t keep = 0 - SubtractFrom(less, order);
  __asm__("" : "+r"(keep));
  for (int i = 0; i < N; ++i) a[i] = (a[i] & keep) | (less[i] & ~keep);
}

// a + b for both below l.
Scalar Plus(const Scalar& a, const Scalar& b) {
  Scalar out = a;
  AddTo(out.word, b.word);
  SubtractOrderOnce(out.word);
  return out;
}

// 0 for 0.
Scalar Minus(const Scalar& a) {
  Scalar out = kOrder;
  SubtractFrom(out.word, a.word);
  SubtractOrderOnce(out.word);
  return out;
}

}  // namespace

// Barrett's reduction (Handbook of Applied Cryptography, algorithm 14.42) with words of 64 bits.
Scalar Reduce(const uint64_t wide[8]) {
  uint64_t high[5], product[10], quotient[5], back[9], rest[5], order_times[5];
  std::memcpy(high, wide + 3, sizeof(high));
  Multiply(high, kReciprocal, product);
  std::memcpy(quotient, product + 5, sizeof(quotient));
  Multiply(quotient, kOrder.word, back);
  std::memcpy(order_times, back, sizeof(order_times));
  std::memcpy(rest, wide, sizeof(rest));
  SubtractFrom(rest, order_times);
  SubtractOrderOnce(rest);
  SubtractOrderOnce(rest);
  Scalar out;
  std::memcpy(out.word, rest, sizeof(out.word));
  return out;
}

Scalar ScalarFrom(const uint8_t in[32]) {
  uint64_t wide[8] = {};
  std::memcpy(wide, in, 32);
  return Reduce(wide);
}

bool IsReduced(const uint8_t in[32]) {
  uint64_t value[4];
  std::memcpy(value, in, 32);
  return SubtractFrom(value, kOrder.word) == 1;
}

Scalar MulAdd(const Scalar& a, const Scalar& b, const Scalar& c) {
  uint64_t product[8], more[8] = {};
  Multiply(a.word, b.word, product);
  std::memcpy(more, c.word, sizeof(c.word));
  AddTo(product, more);
  return Reduce(product);
}

Scalar InnerProduct(const uint8_t* s, const int32_t* index, const int64_t* y, int64_t count) {
  // Six words hold 2^32 terms below 2^(253 + 62); positive and negative y separately.
  uint64_t sums[2][6] = {};
  for (int64_t j = 0; j < count; ++j) {
    uint64_t value[4], product[5], wider[6] = {};
    std::memcpy(value, s + 32 * static_cast<int64_t>(index[j]), sizeof(value));
    const uint64_t factor[1] = {static_cast<uint64_t>(y[j] < 0 ? -y[j] : y[j])};
    Multiply(value, factor, product);
    std::memcpy(wider, product, sizeof(product));
    AddTo(sums[y[j] < 0], wider);
  }
  Scalar reduced[2];
  for (int side = 0; side < 2; ++side) {
    uint64_t wide[8] = {};
    std::memcpy(wide, sums[side], sizeof(sums[side]));
    reduced[side] = Reduce(wide);
  }
  return Plus(reduced[0], Minus(reduced[1]));
}

Scalar SignedBits(const Scalar& k) {
  // (k + 2^256 - 1) / 2: of an odd number, l is added first.
  Scalar sum = Plus(k, kAllOnes);
  uint64_t odd = 0 - (sum.word[0] & 1);
  __asm__("" : "+r"(odd));
  Scalar order;
  for (int i = 0; i < 4; ++i) order.word[i] = kOrder.word[i] & odd;
  AddTo(sum.word, order.word);
  for (int i = 0; i < 4; ++i) {
    sum.word[i] = sum.word[i] >> 1 | (i < 3 ? sum.word[i + 1] << 63 : 0);
  }
  return sum;
}

}  // namespace curve
}  // namespace tfe_bench
