// For vectors_avx2.cc and vectors_avx512.cc: the same source under two instruction sets.  Plain
// functions only, inside an anonymous namespace (one-definition rule).

#include "protocols/kernels/core/vec.h"

namespace tfe_bench {
namespace {

inline Vec Load(const uint64_t* p, int width) {
  Vec v;
  if (width == kSuperWords) {
    __builtin_memcpy(&v, p, 64);
    return v;
  }
  uint64_t words[kSuperWords] = {};
  __builtin_memcpy(words, p, width * 8);
  __builtin_memcpy(&v, words, 64);
  return v;
}

inline void Store(uint64_t* p, int width, Vec v) {
  if (width == kSuperWords) {
    __builtin_memcpy(p, &v, 64);
    return;
  }
  __builtin_memcpy(p, &v, width * 8);
}

inline Vec Zero() { return Vec{}; }
inline Vec Ones() { return ~Vec{}; }

inline int WidthOf(int64_t words, int64_t super) {
  const int64_t left = words - super * kSuperWords;
  return left < kSuperWords ? static_cast<int>(left) : kSuperWords;
}

// Lanes l and l ^ j change places.
template <int j>
inline Vec SwapLanes(Vec v) {
#if defined(__clang__)
  return __builtin_shufflevector(v, v, 0 ^ j, 1 ^ j, 2 ^ j, 3 ^ j, 4 ^ j, 5 ^ j, 6 ^ j, 7 ^ j);
#else
  return __builtin_shuffle(v, Vec{0 ^ j, 1 ^ j, 2 ^ j, 3 ^ j, 4 ^ j, 5 ^ j, 6 ^ j, 7 ^ j});
#endif
}

// One step of Transpose64 between words k and k | j, for j below 8: both lie in one vector.
template <int j>
inline void TransposeWithin(Vec* v, uint64_t mask) {
  const Vec lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  const Vec upper = -((lanes & j) >> (j == 4 ? 2 : j - 1));  // all ones where k has bit j
  for (int i = 0; i < kSuperWords; ++i) {
    const Vec other = SwapLanes<j>(v[i]);
    const Vec k = (v[i] & ~upper) | (other & upper), kj = (other & ~upper) | (v[i] & upper);
    const Vec t = ((k >> j) ^ kj) & mask;
    v[i] ^= (t & upper) | ((t << j) & ~upper);
  }
}

// Bit matrix transpose of 64 words: out bit i of word j = in bit j of word i.
inline void Transpose64(uint64_t a[64]) {
  Vec v[kSuperWords];
  __builtin_memcpy(v, a, sizeof(v));
  uint64_t mask = 0x00000000FFFFFFFFull;
  for (int j = 32; j >= 8; j >>= 1, mask ^= mask << j) {
    const int step = j / 8;
    for (int k = 0; k < kSuperWords; k = ((k | step) + 1) & ~step) {
      const Vec t = ((v[k] >> j) ^ v[k | step]) & mask;
      v[k] ^= t << j;
      v[k | step] ^= t;
    }
  }
  TransposeWithin<4>(v, 0x0F0F0F0F0F0F0F0Full);
  TransposeWithin<2>(v, 0x3333333333333333ull);
  TransposeWithin<1>(v, 0x5555555555555555ull);
  __builtin_memcpy(a, v, sizeof(v));
}

void PlanesRange(const uint64_t* x, int limbs, const int32_t* a, const int32_t* b, int64_t n,
                 int bits, uint64_t* out, int64_t begin, int64_t end) {
  const int64_t words = (n + 63) / 64;
  for (int64_t s = begin; s < end; ++s) {
    const int width = WidthOf(words, s);
    uint64_t* base = out + s * kSuperWords * bits;
    for (int w = 0; w < width; ++w) {
      const int64_t first = (s * kSuperWords + w) * 64;
      const int count = n - first < 64 ? static_cast<int>(n - first) : 64;
      alignas(64) uint64_t lo[64], hi[64];
      if (limbs == 1) {
        if (a) {
          for (int i = 0; i < count; ++i) lo[i] = x[a[first + i]] - x[b[first + i]];
        } else {
          for (int i = 0; i < count; ++i) lo[i] = x[first + i];
        }
      } else {
        for (int i = 0; i < count; ++i) {
          if (a) {
            const uint64_t* p = x + 2 * static_cast<int64_t>(a[first + i]);
            const uint64_t* q = x + 2 * static_cast<int64_t>(b[first + i]);
            lo[i] = p[0] - q[0];
            hi[i] = p[1] - q[1] - (p[0] < q[0]);
          } else {
            lo[i] = x[2 * (first + i)];
            hi[i] = x[2 * (first + i) + 1];
          }
        }
      }
      for (int i = count; i < 64; ++i) lo[i] = hi[i] = 0;
      Transpose64(lo);
      const int low = bits < 64 ? bits : 64;
      for (int j = 0; j < low; ++j) base[j * width + w] = lo[j];
      if (bits > 64) {
        Transpose64(hi);
        for (int j = 64; j < bits; ++j) base[j * width + w] = hi[j - 64];
      }
    }
  }
}

// The stream of a full superblock has planes * 4 blocks; the last one may use fewer.
inline void FillPlanes(const MaskSource& mask, int stream, int64_t super, int planes, int width,
                       uint64_t* out) {
  const uint64_t first = static_cast<uint64_t>(super) * planes * (kSuperWords / 2);
  mask.fill(mask.env, stream, first, (static_cast<uint64_t>(planes) * width + 1) / 2, out);
}

// Products of the masks of one group.  Masks of node j of the group: eps[j] (of its e), eta[j] (of
// its l).  Order: for q = 2..r the products of eta_q with every non-empty subset of eps_1..eps_{q-1},
// then the products of two or more eps (of all r, or of the first r-1 if only l is wanted).
int Monomials(int r, bool last, const Vec* eps, const Vec* eta, Vec* out) {
  Vec product[1 << kMaxRadix];
  product[0] = Ones();
  for (int j = 0; j < r; ++j) {
    if (j == r - 1 && last) break;
    for (int t = 0; t < (1 << j); ++t) product[(1 << j) + t] = product[t] & eps[j];
  }
  int count = 0;
  for (int q = 1; q < r; ++q) {
    for (int t = 1; t < (1 << q); ++t) out[count++] = product[t] & eta[q];
  }
  const int size = last ? r - 1 : r;
  for (int t = 1; t < (1 << size); ++t) {
    if (t & (t - 1)) out[count++] = product[t];
  }
  return count;
}

// One evaluator's XOR shares of L = l_1 ^ e_1 l_2 ^ e_1 e_2 l_3 ^ ... and, unless last, of
// E = e_1 ... e_r, from the masked e, l, its shares eps, eta of their masks and the dealt products.
void Node(int r, bool last, bool first_evaluator, const Vec* e, const Vec* l, const Vec* eps,
          const Vec* eta, const Vec* dealt, Vec* out_l, Vec* out_e) {
  Vec coefficient[1 << kMaxRadix];  // of each eps product in e_1 ... e_{q}
  Vec total[1 << kMaxRadix];        // of each eps product in L
  Vec share = Zero();
  coefficient[0] = Ones();
  total[0] = Zero();
  int next = 0;
  for (int q = 0; q < r; ++q) {
    const int size = 1 << q;
    share ^= coefficient[0] & eta[q];
    total[0] ^= coefficient[0] & l[q];
    for (int t = 1; t < size; ++t) {
      share ^= coefficient[t] & dealt[next++];
      total[t] ^= coefficient[t] & l[q];
    }
    if (q == r - 1 && last) break;
    for (int t = 0; t < size; ++t) {
      coefficient[size + t] = coefficient[t];
      coefficient[t] &= e[q];
      total[size + t] = Zero();
    }
  }
  const int size = last ? r - 1 : r;
  Vec share_e = Zero();
  if (first_evaluator) {
    share ^= total[0];
    if (!last) share_e ^= coefficient[0];
  }
  for (int t = 1; t < (1 << size); ++t) {
    const Vec product = (t & (t - 1)) ? dealt[next++] : eps[__builtin_ctz(t)];
    share ^= total[t] & product;
    if (!last) share_e ^= coefficient[t] & product;
  }
  *out_l = share;
  *out_e = share_e;
}

void DealRange(const LutRecipe& r, int64_t words, const uint64_t* lam, const MaskSource& mask,
               uint64_t* message, uint64_t* top, uint64_t* scratch, int64_t begin, int64_t end) {
  const int dealt = r.DealtPlanes();
  uint64_t* pad = scratch;
  uint64_t* mask1 = pad + static_cast<int64_t>(dealt + 1) * kSuperWords;
  for (int64_t s = begin; s < end; ++s) {
    const int width = WidthOf(words, s);
    const uint64_t* in = lam + s * kSuperWords * r.bits;
    uint64_t* out = message + s * kSuperWords * dealt;
    FillPlanes(mask, kDealtStream, s, dealt, width, pad);
    int plane = 0;
    auto emit = [&](Vec v) {
      Store(out + plane * width, width, v ^ Load(pad + plane * width, width));
      ++plane;
    };
    int position = r.bits - 1;
    for (int c = 0; c < r.chunks; ++c) {
      position -= r.width[c];
      Vec onehot[1 << kMaxChunkWidth];
      onehot[0] = Ones();
      for (int b = 0; b < r.width[c]; ++b) {
        const Vec bit = Load(in + (position + b) * width, width);
        for (int v = 0; v < (1 << b); ++v) {
          onehot[(1 << b) + v] = onehot[v] & bit;
          onehot[v] &= ~bit;
        }
      }
      for (int v = 0; v < (1 << r.width[c]) - 1; ++v) emit(onehot[v]);
    }
    for (int level = 0; level < r.levels; ++level) {
      const int planes = r.ExchangePlanes(level);
      uint64_t* mask2 = mask1 + static_cast<int64_t>(planes + 1) * kSuperWords;
      FillPlanes(mask, LevelMask(level, true), s, planes, width, mask1);
      FillPlanes(mask, LevelMask(level, false), s, planes, width, mask2);
      auto mu = [&](int p) {
        return p < planes ? Load(mask1 + p * width, width) ^ Load(mask2 + p * width, width)
                          : Zero();
      };
      int node = 0;
      for (int g = 0; g < r.groups[level]; ++g) {
        const int radix = r.group[level][g];
        Vec eps[kMaxRadix], eta[kMaxRadix], products[3 << kMaxRadix];
        for (int j = 0; j < radix; ++j) {
          eta[j] = mu(2 * (node + j));
          eps[j] = mu(2 * (node + j) + 1);
        }
        node += radix;
        const int count = Monomials(radix, g == r.groups[level] - 1, eps, eta, products);
        for (int i = 0; i < count; ++i) emit(products[i]);
      }
    }
    const Vec msb = Load(in + (r.bits - 1) * width, width);
    if (r.absorb) emit(msb);
    Store(top + s * kSuperWords, width, msb);
  }
}

// Dealt planes [from, from + count) of superblock s as this evaluator holds them.
inline const uint64_t* DealtShare(const LutRecipe& r, const uint64_t* dealt, int64_t s, int width,
                                  const MaskSource& mask, int from, int count, uint64_t* pad) {
  if (dealt) return dealt + s * kSuperWords * r.DealtPlanes() + static_cast<int64_t>(from) * width;
  const uint64_t super_start = static_cast<uint64_t>(s) * r.DealtPlanes() * (kSuperWords / 2);
  const uint64_t word = static_cast<uint64_t>(from) * width;  // a block is two words
  const uint64_t words = static_cast<uint64_t>(count) * width + (word & 1);
  mask.fill(mask.env, kDealtStream, super_start + word / 2, (words + 1) / 2, pad);
  return pad + (word & 1);
}

void ExchangeRange(const LutRecipe& r, int64_t words, const uint64_t* m, const uint64_t* dealt,
               const MaskSource& mask, uint64_t* message, uint64_t* scratch, int64_t begin,
               int64_t end) {
  const bool first_evaluator = dealt == nullptr;
  uint64_t* pad = scratch;
  uint64_t* own = pad + static_cast<int64_t>(r.DealtPlanes() + 1) * kSuperWords;
  const int planes = r.ExchangePlanes(0);
  for (int64_t s = begin; s < end; ++s) {
    const int width = WidthOf(words, s);
    const uint64_t* in = m + s * kSuperWords * r.bits;
    uint64_t* out = message + s * kSuperWords * planes;
    const uint64_t* table =
        DealtShare(r, dealt, s, width, mask, 0, r.TablePlanes(), pad);
    FillPlanes(mask, LevelMask(0, first_evaluator), s, planes, width, own);
    int position = r.bits - 1;
    for (int c = 0; c < r.chunks; ++c) {
      const int size = 1 << r.width[c];
      position -= r.width[c];
      Vec e[1 << kMaxChunkWidth], l[1 << kMaxChunkWidth];
      Vec sum = first_evaluator ? Zero() : Ones();  // all entries of a one-hot table XOR to 1
      for (int v = 0; v < size - 1; ++v) {
        e[v] = Load(table + v * width, width);
        sum ^= e[v];
      }
      table += static_cast<int64_t>(size - 1) * width;
      e[size - 1] = sum;
      l[size - 1] = Zero();
      for (int v = size - 2; v >= 0; --v) l[v] = l[v + 1] ^ e[v + 1];
      for (int b = 0; b < r.width[c]; ++b) {  // select entry j = chunk of m
        const Vec bit = Load(in + (position + b) * width, width);
        for (int v = 0; v < (size >> (b + 1)); ++v) {
          e[v] = e[2 * v] ^ (bit & (e[2 * v] ^ e[2 * v + 1]));
          l[v] = l[2 * v] ^ (bit & (l[2 * v] ^ l[2 * v + 1]));
        }
      }
      Store(out + (2 * c) * width, width, l[0] ^ Load(own + (2 * c) * width, width));
      if (c < r.chunks - 1) {
        Store(out + (2 * c + 1) * width, width, e[0] ^ Load(own + (2 * c + 1) * width, width));
      }
    }
  }
}

void NodeRange(const LutRecipe& r, int level, int64_t words, const uint64_t* m,
               const uint64_t* own_message, const uint64_t* other, const uint64_t* dealt,
               const MaskSource& mask, uint64_t* out, uint64_t* scratch, int64_t begin,
               int64_t end) {
  const bool first_evaluator = dealt == nullptr;
  const bool done = level == r.levels - 1;
  const int planes = r.ExchangePlanes(level);
  const int next_planes = done ? 1 : r.ExchangePlanes(level + 1);
  int skip = r.TablePlanes();
  for (int i = 0; i < level; ++i) skip += r.MonomialPlanes(i);
  // lam's top bit follows the products of the last level
  const int wanted = r.MonomialPlanes(level) + (done && r.absorb ? 1 : 0);
  uint64_t* pad = scratch;
  uint64_t* own = pad + static_cast<int64_t>(r.DealtPlanes() + 1) * kSuperWords;
  uint64_t* next_mask = own + static_cast<int64_t>(planes + 1) * kSuperWords;
  for (int64_t s = begin; s < end; ++s) {
    const int width = WidthOf(words, s);
    const uint64_t* a = own_message + s * kSuperWords * planes;
    const uint64_t* b = other + s * kSuperWords * planes;
    uint64_t* to = out + s * kSuperWords * next_planes;
    const uint64_t* products = DealtShare(r, dealt, s, width, mask, skip, wanted, pad);
    FillPlanes(mask, LevelMask(level, first_evaluator), s, planes, width, own);
    if (!done) {
      FillPlanes(mask, LevelMask(level + 1, first_evaluator), s, next_planes, width, next_mask);
    }
    int node = 0;
    for (int g = 0; g < r.groups[level]; ++g) {
      const int radix = r.group[level][g];
      const bool last = g == r.groups[level] - 1;
      Vec e[kMaxRadix], l[kMaxRadix], eps[kMaxRadix], eta[kMaxRadix], dealt_here[3 << kMaxRadix];
      for (int j = 0; j < radix; ++j) {
        const int p = 2 * (node + j);
        l[j] = Load(a + p * width, width) ^ Load(b + p * width, width);
        eta[j] = Load(own + p * width, width);
        if (p + 1 < planes) {
          e[j] = Load(a + (p + 1) * width, width) ^ Load(b + (p + 1) * width, width);
          eps[j] = Load(own + (p + 1) * width, width);
        } else {
          e[j] = eps[j] = Zero();
        }
      }
      node += radix;
      const int count = MonomialsOf(radix, last);
      for (int i = 0; i < count; ++i) dealt_here[i] = Load(products + i * width, width);
      products += static_cast<int64_t>(count) * width;
      Vec less, equal;
      Node(radix, last, first_evaluator, e, l, eps, eta, dealt_here, &less, &equal);
      if (done) {
        if (first_evaluator) {
          less ^= Load(m + s * kSuperWords * r.bits + (r.bits - 1) * width, width);
        }
        if (r.absorb) less ^= Load(products, width);
        Store(to, width, less);
      } else {
        Store(to + 2 * g * width, width, less ^ Load(next_mask + 2 * g * width, width));
        if (!last) {
          Store(to + (2 * g + 1) * width, width,
                equal ^ Load(next_mask + (2 * g + 1) * width, width));
        }
      }
    }
  }
}

const LutFunctions kLutFunctions = {PlanesRange, DealRange, ExchangeRange, NodeRange};

}  // namespace
}  // namespace tfe_bench
