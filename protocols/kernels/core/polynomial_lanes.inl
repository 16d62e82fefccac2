// For vectors_avx2.cc and vectors_avx512.cc: the same source under two instruction sets.  Plain
// functions only, inside an anonymous namespace (one-definition rule).

#include "protocols/kernels/core/vec.h"

namespace tfe_bench {
namespace {

typedef int64_t Signed __attribute__((vector_size(64), aligned(8), may_alias));

constexpr int kLanes = 8;

inline Vec Low(Vec v, int width) { return width == 64 ? v : v & ((uint64_t{1} << width) - 1); }

// Word w of eight records that follow each other.
inline void Gather(const uint64_t* records, int words, Vec* out) {
  for (int w = 0; w < words; ++w) {
    const uint64_t* r = records + w;
    out[w] = Vec{r[0],         r[words],     r[2 * words], r[3 * words],
                 r[4 * words], r[5 * words], r[6 * words], r[7 * words]};
  }
}

inline Vec Field(const Vec* words, int offset, int width) {
  const int at = offset / 64, bit = offset % 64;
  Vec v = words[at] >> bit;
  if (bit + width > 64) v |= words[at + 1] << (64 - bit);
  return Low(v, width);
}

inline void PutField(Vec* words, int offset, int width, Vec v) {
  const int at = offset / 64, bit = offset % 64;
  words[at] |= v << bit;
  if (bit + width > 64) words[at + 1] |= v >> (64 - bit);
}

int64_t DealLanes(const LanePlan& p, const uint64_t* lam, int64_t count, uint64_t* records) {
  const int d = p.degree, size = p.record_words, up = 64 - p.bits;
  const int used = p.offset[d] + 2 * p.width[d];
  int64_t e = 0;
  for (; e + kLanes <= count; e += kLanes, records += kLanes * size) {
    Vec mask[kMaxLaneWords], out[kMaxLaneWords], power[2][kMaxDegree + 1], x;
    Gather(records, size, mask);
    for (int w = 0; w < size; ++w) out[w] = Vec{};
    // bits that belong to no field stay mask
    if (used % 64) out[size - 1] = mask[size - 1] >> (used % 64) << (used % 64);
    __builtin_memcpy(&x, lam + e, sizeof(x));
    for (int b = 0; b < 2; ++b) {
      const Vec moved = (x + (static_cast<uint64_t>(b) << (p.bits - 1))) << up;
      power[b][1] = -reinterpret_cast<Vec>(reinterpret_cast<Signed>(moved) >> up);
      for (int j = 2; j <= d; ++j) power[b][j] = power[b][j - 1] * power[b][1];
    }
    for (int t = 1; t <= d; ++t) {
      const int width = p.width[t], dropped = p.modulus_bits - width;
      if (width == 0) continue;
      for (int b = 0; b < 2; ++b) {
        const int offset = p.offset[t] + b * width;
        Vec value = power[b][t];
        if (dropped) value = (value + (uint64_t{1} << (dropped - 1))) >> dropped;
        PutField(out, offset, width, Low(value - Field(mask, offset, width), width));
      }
    }
    for (int w = 0; w < size; ++w) {
      for (int lane = 0; lane < kLanes; ++lane) records[lane * size + w] = out[w][lane];
    }
  }
  return e;
}

int64_t ShareLanes(const LanePlan& p, const uint64_t* coefficients, bool first, const uint64_t* m,
                   int64_t count, const uint64_t* records, uint64_t* y) {
  const int d = p.degree, size = p.record_words;
  const uint64_t quarter = uint64_t{1} << (p.bits - 2);
  const uint64_t below = first ? 0 : (uint64_t{1} << p.drop) - 1;  // the ceiling
  int64_t e = 0;
  for (; e + kLanes <= count; e += kLanes, records += kLanes * size) {
    Vec dealt[kMaxLaneWords], moved[kMaxDegree + 1], x;
    Gather(records, size, dealt);
    __builtin_memcpy(&x, m + e, sizeof(x));
    x += quarter;
    const Vec top = -(x >> (p.bits - 1) & 1);
    const Vec known = (x & (2 * quarter - 1)) - quarter;
    // Taylor's shift: coefficients of p(known + N) in N.
    moved[0] = Vec{} + coefficients[0];
    for (int t = 1; t <= d; ++t) moved[t] = Vec{} + coefficients[t];
    for (int a = 0; a < d; ++a) {
      for (int j = d - 1; j >= a; --j) moved[j] += moved[j + 1] * known;
    }
    Vec z = first ? moved[0] : Vec{};
    for (int t = 1; t <= d; ++t) {
      const int width = p.width[t];
      if (width == 0) continue;
      const Vec zero = Field(dealt, p.offset[t], width);
      const Vec one = Field(dealt, p.offset[t] + width, width);
      z += ((zero ^ ((zero ^ one) & top)) * moved[t]) << (p.modulus_bits - width);
    }
    z = (z + below) >> p.drop;
    __builtin_memcpy(y + e, &z, sizeof(z));
  }
  return e;
}

const LaneFunctions kLaneFunctions = {DealLanes, ShareLanes};

}  // namespace
}  // namespace tfe_bench
