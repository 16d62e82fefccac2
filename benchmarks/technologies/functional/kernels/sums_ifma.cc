// Four numbers modulo p at once, limb by limb in a vector of four, by multiplications of 52 bits.
//
// The four products of each half of an addition are independent (Hisil et al., 2008, section 4);
// limbs are below 2^52 wherever a product reads them.  Same formulas as point.h.
#include <immintrin.h>

#include <cstdint>

#include "benchmarks/technologies/functional/kernels/layout.h"

namespace tfe_bench {
namespace curve {
namespace {

// Lanes X, Y, Z, T of a point; or others, as said.
struct Four {
  __m256i limb[5];
};

inline __m256i All(uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }

// Limbs of 2 p: minuends of what is tight.
inline __m256i Bias(int limb) { return All(limb == 0 ? 0xfffffffffffda : 0xffffffffffffe); }

inline __m256i Times19(__m256i a) {
  return _mm256_add_epi64(_mm256_add_epi64(_mm256_slli_epi64(a, 4), _mm256_slli_epi64(a, 1)), a);
}

// Limbs below 2^61 to tight ones.
inline Four Carry(const Four& a) {
  const __m256i low = All((uint64_t{1} << 51) - 1);
  Four out;
  __m256i over = Times19(_mm256_srli_epi64(a.limb[4], 51));
  for (int i = 0; i < 5; ++i) {
    out.limb[i] = _mm256_add_epi64(_mm256_and_si256(a.limb[i], low), over);
    over = _mm256_srli_epi64(a.limb[i], 51);
  }
  return out;
}

inline Four Mul(const Four& a, const Four& b) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i low[10], high[10];
  for (int k = 0; k < 10; ++k) low[k] = high[k] = zero;
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 5; ++j) {
      low[i + j] = _mm256_madd52lo_epu64(low[i + j], a.limb[i], b.limb[j]);
      // Of weight 2^52, which is twice the next limb's.
      high[i + j + 1] = _mm256_madd52hi_epu64(high[i + j + 1], a.limb[i], b.limb[j]);
    }
  }
  Four out;
  for (int k = 0; k < 5; ++k) {
    const __m256i upper = _mm256_add_epi64(low[k + 5], _mm256_slli_epi64(high[k + 5], 1));
    const __m256i lower = _mm256_add_epi64(low[k], _mm256_slli_epi64(high[k], 1));
    out.limb[k] = _mm256_add_epi64(lower, Times19(upper));
  }
  return Carry(out);
}

// (E F, G H, F G, E H) of lanes E, H, F, G: the end of an addition or doubling.
inline Four Finish(const Four& ehfg) {
  Four first, second;
  for (int i = 0; i < 5; ++i) {
    first.limb[i] = _mm256_permute4x64_epi64(ehfg.limb[i], _MM_SHUFFLE(0, 2, 3, 0));
    second.limb[i] = _mm256_permute4x64_epi64(ehfg.limb[i], _MM_SHUFFLE(1, 3, 1, 2));
  }
  return Mul(first, second);
}

// (Y - X, Y + X, Z, T).
inline Four Spread(const Four& p) {
  Four out;
  for (int i = 0; i < 5; ++i) {
    const __m256i y = _mm256_permute4x64_epi64(p.limb[i], _MM_SHUFFLE(3, 2, 1, 1));
    __m256i x = _mm256_maskz_permutex_epi64(3, p.limb[i], _MM_SHUFFLE(0, 0, 0, 0));
    x = _mm256_mask_sub_epi64(x, 1, Bias(i), x);
    out.limb[i] = _mm256_add_epi64(y, x);
  }
  return Carry(out);
}

// p + q for q as lanes Y - X, Y + X, 2 Z, 2 d T.
inline Four Add(const Four& p, const Four& q) {
  const Four m = Mul(Spread(p), q);  // A, B, D, C
  Four ehfg;
  for (int i = 0; i < 5; ++i) {
    const __m256i swapped = _mm256_permute4x64_epi64(m.limb[i], _MM_SHUFFLE(2, 3, 0, 1));
    const __m256i left = _mm256_mask_sub_epi64(m.limb[i], 1, Bias(i), m.limb[i]);
    const __m256i right = _mm256_mask_sub_epi64(swapped, 4, Bias(i), swapped);
    ehfg.limb[i] = _mm256_add_epi64(left, right);
  }
  return Finish(Carry(ehfg));
}

inline Four Double(const Four& p) {
  Four in;
  for (int i = 0; i < 5; ++i) {
    const __m256i x = _mm256_permute4x64_epi64(p.limb[i], _MM_SHUFFLE(0, 0, 0, 0));
    const __m256i y = _mm256_permute4x64_epi64(p.limb[i], _MM_SHUFFLE(1, 2, 1, 0));
    in.limb[i] = _mm256_mask_add_epi64(y, 8, x, y);  // X, Y, Z, X + Y
  }
  in = Carry(in);
  const Four m = Mul(in, in);
  Four ehfg;
  for (int i = 0; i < 5; ++i) {
    const __m256i a = _mm256_permute4x64_epi64(m.limb[i], _MM_SHUFFLE(0, 0, 0, 0));
    __m256i b = _mm256_permute4x64_epi64(m.limb[i], _MM_SHUFFLE(1, 1, 1, 1));
    b = _mm256_mask_sub_epi64(b, 12, Bias(i), b);
    __m256i more = _mm256_maskz_permutex_epi64(5, m.limb[i], _MM_SHUFFLE(3, 2, 1, 3));
    more = _mm256_mask_sub_epi64(more, 1, Bias(i), more);
    more = _mm256_mask_add_epi64(more, 4, more, more);
    ehfg.limb[i] = _mm256_add_epi64(_mm256_add_epi64(a, b), more);
  }
  return Finish(Carry(ehfg));
}

inline Four Identity() {
  Four out;
  for (int i = 0; i < 5; ++i) out.limb[i] = _mm256_setzero_si256();
  out.limb[0] = _mm256_set_epi64x(0, 1, 1, 0);
  return out;
}

inline Four Load(const Point& p) {
  Four out;
  for (int i = 0; i < 5; ++i) {
    out.limb[i] = _mm256_set_epi64x(
        static_cast<long long>(p.t.limb[i]), static_cast<long long>(p.z.limb[i]),
        static_cast<long long>(p.y.limb[i]), static_cast<long long>(p.x.limb[i]));
  }
  return out;
}

inline Point Store(const Four& a) {
  Point out;
  for (int i = 0; i < 5; ++i) {
    alignas(32) uint64_t lane[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), a.limb[i]);
    out.x.limb[i] = lane[0];
    out.y.limb[i] = lane[1];
    out.z.limb[i] = lane[2];
    out.t.limb[i] = lane[3];
  }
  return out;
}

// Difference, sum, 2 and product, from the words of an Affine.
inline Four Summand(const uint64_t* words) {
  Four out;
  for (int i = 0; i < 5; ++i) {
    out.limb[i] = _mm256_set_epi64x(
        static_cast<long long>(words[10 + i]), i == 0 ? 2 : 0, static_cast<long long>(words[i]),
        static_cast<long long>(words[5 + i]));
  }
  return out;
}

inline Four Opposite(const Four& a) {
  Four out;
  for (int i = 0; i < 5; ++i) {
    const __m256i swapped = _mm256_permute4x64_epi64(a.limb[i], _MM_SHUFFLE(3, 2, 0, 1));
    out.limb[i] = _mm256_mask_sub_epi64(swapped, 8, Bias(i), swapped);
  }
  return out;
}

inline Four Summand(const Affine& p, bool negative) {
  const Four plus = Summand(p.sum.limb);
  return negative ? Opposite(plus) : plus;
}

// Any point as a summand: Y - X, Y + X, 2 Z, 2 d T.
inline Four Summand(const Four& p) {
  constexpr uint64_t kTwiceD[5] = {0x69b9426b2f159, 0x35050762add7a, 0x3cf44c0038052,
                                   0x6738cc7407977, 0x2406d9dc56dff};
  Four factor;
  for (int i = 0; i < 5; ++i) {
    const long long one = i == 0;
    factor.limb[i] = _mm256_set_epi64x(static_cast<long long>(kTwiceD[i]), 2 * one, one, one);
  }
  return Mul(Spread(p), factor);
}

// Reads the whole table whatever is selected.
inline Four Select(const Step& step) {
  __m512i first = _mm512_setzero_si512(), second = first;
  uint64_t none = ~uint64_t{0};
  for (uint64_t i = 0; i < kTable; ++i) {
    const uint64_t differs = i ^ step.at;
    uint64_t mask = 0 - (1 ^ ((differs | (0 - differs)) >> 63));
    __asm__("" : "+r"(mask));
    none ^= mask;
    const __m512i all = _mm512_set1_epi64(static_cast<long long>(mask));
    const __m512i* entry = reinterpret_cast<const __m512i*>(step.table + i);
    first = _mm512_or_si512(first, _mm512_and_si512(_mm512_loadu_si512(entry), all));
    second = _mm512_or_si512(second, _mm512_and_si512(_mm512_loadu_si512(entry + 1), all));
  }
  alignas(64) uint64_t words[16];
  _mm512_store_si512(words, first);
  _mm512_store_si512(words + 8, second);
  words[0] |= none & 1;
  words[5] |= none & 1;
  const Four plus = Summand(words), minus = Opposite(plus);
  const __m256i negative = All(step.negative);
  Four out;
  for (int i = 0; i < 5; ++i) {
    out.limb[i] = _mm256_or_si256(_mm256_and_si256(negative, minus.limb[i]),
                                  _mm256_andnot_si256(negative, plus.limb[i]));
  }
  return out;
}

void Run(Point* p, const Step* steps, int64_t count) {
  Four at = Load(*p);
  for (const Step* step = steps; step < steps + count; ++step) {
    for (int i = 0; i < step->doublings; ++i) at = Double(at);
    at = Add(at, Select(*step));
  }
  *p = Store(at);
}

// In two sums, which do not wait for each other.
void AddTerms(Point* p, const Term* terms, int64_t count) {
  Four even = Load(*p), odd = Identity();
  int64_t j = 0;
  for (; j + 1 < count; j += 2) {
    even = Add(even, Summand(*terms[j].point, terms[j].negative));
    odd = Add(odd, Summand(*terms[j + 1].point, terms[j + 1].negative));
  }
  if (j < count) even = Add(even, Summand(*terms[j].point, terms[j].negative));
  *p = Store(Add(even, Summand(odd)));
}

inline Four LoadLanes(const Point* at) {
  Four out;
  const __m256i* words = reinterpret_cast<const __m256i*>(at);
  for (int i = 0; i < 5; ++i) out.limb[i] = _mm256_loadu_si256(words + i);
  return out;
}

inline void StoreLanes(Point* at, const Four& a) {
  __m256i* words = reinterpret_cast<__m256i*>(at);
  for (int i = 0; i < 5; ++i) _mm256_storeu_si256(words + i, a.limb[i]);
}

// Buckets lie in the scratch lane by lane.
void Buckets(Point* p, const Affine* points, const int32_t* index, const int32_t* digit,
             int64_t count, Point* bucket, uint8_t* used, int64_t half) {
  static_assert(sizeof(Four) == sizeof(Point), "a bucket has the size of a point");
  for (int64_t at = 0; at <= half; ++at) used[at] = 0;
  int64_t top = 0;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t at = digit[j] < 0 ? -int64_t{digit[j]} : digit[j];
    if (at == 0) continue;
    const Four before = used[at] ? LoadLanes(bucket + at) : Identity();
    StoreLanes(bucket + at, Add(before, Summand(points[index[j]], digit[j] < 0)));
    used[at] = 1;
    if (at > top) top = at;
  }
  if (top == 0) return;
  Four running = LoadLanes(bucket + top), summand = Summand(running), total = running;
  for (int64_t at = top - 1; at > 0; --at) {
    if (used[at]) {
      running = Add(running, Summand(LoadLanes(bucket + at)));
      summand = Summand(running);
    }
    total = Add(total, summand);
  }
  *p = Store(Add(Load(*p), Summand(total)));
}

constexpr Sums kIfma = {Run, AddTerms, Buckets};

}  // namespace

const Sums* SumsIfma() { return &kIfma; }

}  // namespace curve
}  // namespace tfe_bench
