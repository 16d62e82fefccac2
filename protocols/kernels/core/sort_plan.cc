#include "protocols/kernels/core/sort_plan.h"

#include <algorithm>

namespace tfe_bench {
namespace {

inline bool Bit(const uint64_t* bits, int64_t i) { return bits[i >> 6] >> (i & 63) & 1; }

// Orders the elements by how many of the others are below them.  less(i, j), i < j.
// Empty when the answers fit no order.
template <typename Less>
std::vector<int32_t> RankAll(const int32_t* elements, int64_t size, Less less) {
  std::vector<int32_t> rank(size, 0);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = i + 1; j < size; ++j) {
      const bool below = less(i, j);
      rank[i] += !below;
      rank[j] += below;
    }
  }
  std::vector<int32_t> sorted(size, -1);
  for (int64_t i = 0; i < size; ++i) {
    if (sorted[rank[i]] != -1) return {};
    sorted[rank[i]] = elements[i];
  }
  return sorted;
}

}  // namespace

SortPlan::SortPlan(int64_t rows, int64_t n, int64_t all_pairs_at, double round_cost)
    : all_pairs_at_(std::max<int64_t>(2, all_pairs_at)), round_cost_(round_cost) {
  order_.resize(rows * n);
  for (int64_t i = 0; i < rows * n; ++i) order_[i] = static_cast<int32_t>(i);
  if (n > 1) {
    for (int64_t r = 0; r < rows; ++r) segments_.push_back({r * n, (r + 1) * n, {}, kAllPairs, 0, 0});
  }
}

void SortPlan::Choose(Segment* segment, double live) {
  const int64_t size = segment->end - segment->begin;
  if (size <= all_pairs_at_) {
    segment->kind = kAllPairs;
    return;
  }
  if (segment->splitters.empty()) {
    segment->kind = kSample;
    return;
  }
  // Split by the number of bits b for which (comparisons + latency) per bit is smallest.
  segment->kind = kSplit;
  const int known = static_cast<int>(segment->splitters.size());
  int best = 1;
  double least = 0;
  for (int b = 1; (1 << b) - 1 <= known && b <= 8; ++b) {
    const double cost = (live * ((1 << b) - 1) + round_cost_) / b;
    if (b == 1 || cost < least) {
      least = cost;
      best = b;
    }
  }
  segment->pivots = (1 << best) - 1;
}

bool SortPlan::Next() {
  left_.clear();
  right_.clear();
  if (segments_.empty()) return false;
  double live = 0;
  for (const Segment& s : segments_) live += static_cast<double>(s.end - s.begin);
  for (Segment& s : segments_) {
    Choose(&s, live);
    s.first_pair = static_cast<int64_t>(left_.size());
    const int32_t* elements = order_.data() + s.begin;
    int64_t size = s.end - s.begin;
    if (s.kind == kSample) {
      // A sample of about sqrt(size), but no more than makes its all-pairs sort an eighth of a level.
      int64_t t = 3;
      while ((2 * t + 1) * (2 * t + 1) <= size && t < 1023) t = 2 * t + 1;
      s.splitters.assign(elements, elements + t);
      size = t;
    }
    if (s.kind == kSplit) {
      const int64_t known = static_cast<int64_t>(s.splitters.size());
      for (int p = 1; p <= s.pivots; ++p) {
        const int32_t pivot = s.splitters[known * p / (s.pivots + 1)];
        for (int64_t i = 0; i < size; ++i) {
          left_.push_back(elements[i]);
          right_.push_back(pivot);
        }
      }
    } else {
      for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = i + 1; j < size; ++j) {
          left_.push_back(elements[i]);
          right_.push_back(elements[j]);
        }
      }
    }
  }
  return true;
}

bool SortPlan::Answer(const uint64_t* bits) {
  std::vector<Segment> next;
  std::vector<int32_t> bucket_of, scratch;
  std::vector<int64_t> start;
  for (Segment& s : segments_) {
    int32_t* elements = order_.data() + s.begin;
    const int64_t size = s.end - s.begin;
    if (s.kind != kSplit) {
      const int64_t count = s.kind == kSample ? static_cast<int64_t>(s.splitters.size()) : size;
      int64_t pair = s.first_pair;
      auto sorted = RankAll(elements, count, [&](int64_t, int64_t) { return Bit(bits, pair++); });
      if (static_cast<int64_t>(sorted.size()) != count) return Contradiction();
      if (s.kind == kSample) {
        s.splitters = std::move(sorted);
        next.push_back(std::move(s));
      } else {
        std::copy(sorted.begin(), sorted.end(), elements);
      }
      continue;
    }
    // Element i falls into the bucket that counts the pivots which are not above it.  Pivot p
    // compared with itself answers "not less", so it heads bucket p.
    const int64_t known = static_cast<int64_t>(s.splitters.size());
    const int buckets = s.pivots + 1;
    bucket_of.assign(size, 0);
    for (int p = 0; p < s.pivots; ++p) {
      const int64_t pair = s.first_pair + p * size;
      for (int64_t i = 0; i < size; ++i) bucket_of[i] += !Bit(bits, pair + i);
    }
    // Each pivot heads the bucket of its own number; anything else is a contradiction.
    std::vector<int32_t> heads(buckets, -1);
    for (int b = 1; b < buckets; ++b) heads[b] = s.splitters[known * b / buckets];
    int found = 0;
    for (int64_t i = 0; i < size; ++i) {
      for (int b = 1; b < buckets; ++b) {
        if (elements[i] != heads[b]) continue;
        if (bucket_of[i] != b) return Contradiction();
        ++found;
      }
    }
    if (found != buckets - 1) return Contradiction();
    start.assign(buckets + 1, 0);
    for (int64_t i = 0; i < size; ++i) ++start[bucket_of[i] + 1];
    for (int b = 0; b < buckets; ++b) start[b + 1] += start[b];
    scratch.resize(size);
    std::vector<int64_t> at(start.begin(), start.end() - 1);
    // The pivot of bucket b > 0 is its least element: put it first, so that it is finished.
    for (int b = 1; b < buckets; ++b) {
      scratch[at[b]++] = heads[b];
    }
    for (int64_t i = 0; i < size; ++i) {
      const int b = bucket_of[i];
      if (b > 0 && elements[i] == heads[b]) continue;
      scratch[at[b]++] = elements[i];
    }
    std::copy(scratch.begin(), scratch.end(), elements);
    for (int b = 0; b < buckets; ++b) {
      const int64_t begin = start[b] + (b > 0), end = start[b + 1];
      if (end - begin < 2) continue;
      Segment part{s.begin + begin, s.begin + end, {}, kAllPairs, 0, 0};
      const int64_t from = known * b / buckets + (b > 0), to = known * (b + 1) / buckets;
      part.splitters.assign(s.splitters.begin() + from, s.splitters.begin() + to);
      next.push_back(std::move(part));
    }
  }
  segments_ = std::move(next);
  return true;
}

bool SortPlan::Contradiction() {
  segments_.clear();
  return false;
}

}  // namespace tfe_bench
