#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "benchmarks/technologies/functional/kernels/point.h"

namespace tfe_bench {
namespace curve {
namespace {

// Two words, which every x86-64 works on at once.
using Pair = uint64_t __attribute__((vector_size(16), aligned(8), may_alias));
constexpr int kPairs = sizeof(Affine) / sizeof(Pair);

// Reads the whole table whatever is selected.
Affine Select(const Affine* table, uint64_t at, uint64_t negative) {
  Pair words[kPairs] = {};
  uint64_t none = ~uint64_t{0};
  for (uint64_t i = 0; i < kTable; ++i) {
    const uint64_t differs = i ^ at;
    const uint64_t mask = Mask(1 ^ ((differs | (0 - differs)) >> 63));
    none ^= mask;
    const Pair both = {mask, mask};
    const Pair* entry = reinterpret_cast<const Pair*>(table + i);
    for (int w = 0; w < kPairs; ++w) words[w] |= entry[w] & both;
  }
  Affine found;
  std::memcpy(&found, words, sizeof(found));
  Assign(found.sum, kOne, none);
  Assign(found.difference, kOne, none);
  const Field sum = found.sum;
  Assign(found.sum, found.difference, negative);
  Assign(found.difference, sum, negative);
  NegateIf(found.product, negative);
  return found;
}

void Run(Point* p, const Step* steps, int64_t count) {
  for (const Step* step = steps; step < steps + count; ++step) {
    for (int i = 0; i < step->doublings; ++i) *p = Double(*p);
    *p = Add(*p, Select(step->table, step->at, step->negative));
  }
}

void AddTerms(Point* p, const Term* terms, int64_t count) {
  for (const Term* term = terms; term < terms + count; ++term) {
    *p = term->negative ? Subtract(*p, *term->point) : Add(*p, *term->point);
  }
}

// Pippenger's (1976): what has digit j goes to bucket j, and the sum of j B_j is the sum of all
// sums from the top.
void Buckets(Point* p, const Affine* points, const int32_t* index, const int32_t* digit,
             int64_t count, Point* bucket, uint8_t* used, int64_t half) {
  std::memset(used, 0, static_cast<size_t>(half + 1));
  int64_t top = 0;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t at = std::abs(digit[j]);
    if (at == 0) continue;
    const Affine& point = points[index[j]];
    const Point& before = used[at] ? bucket[at] : kIdentity;
    bucket[at] = digit[j] > 0 ? Add(before, point) : Subtract(before, point);
    used[at] = 1;
    top = std::max(top, at);
  }
  if (top == 0) return;
  Point running = bucket[top], total = running;
  for (int64_t at = top - 1; at > 0; --at) {
    if (used[at]) running = Add(running, bucket[at]);
    total = Add(total, running);
  }
  *p = Add(*p, total);
}

constexpr Sums kPortable = {Run, AddTerms, Buckets};

// The faster way where the processor has it, unless TFE_BENCH_ISA names another.
const Sums& Chosen() {
  const char* named = std::getenv("TFE_BENCH_ISA");
  if (named != nullptr && std::strcmp(named, "avx512") != 0) return kPortable;
  const bool has = __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vl");
  return has ? *SumsIfma() : kPortable;
}

}  // namespace

const Sums& SumsHere() {
  static const Sums& chosen = Chosen();
  return chosen;
}

}  // namespace curve
}  // namespace tfe_bench
