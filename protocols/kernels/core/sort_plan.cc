#include "protocols/kernels/core/sort_plan.h"

#include <algorithm>

#include "protocols/kernels/core/memory.h"

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
  order_.resize(CheckedWords(rows, n));  // (half words)
  for (int64_t i = 0; i < rows * n; ++i) order_[i] = static_cast<int32_t>(i);
  if (n > 1) {
    for (int64_t r = 0; r < rows; ++r) segments_.push_back({r * n, (r + 1) * n, {}, kAllPairs, 0, 0});
  }
}

// The bits that one sorted sample per segment should give: those for which it costs least per bit.
int SortPlan::SampleBits() const {
  double best = 0;
  int bits = 2;
  for (int j = 2; j <= 10; ++j) {
    const int64_t t = (int64_t{1} << j) - 1;
    double pairs = 0;
    bool fits = false;
    for (const Segment& s : segments_) {
      const int64_t size = s.end - s.begin;
      if (size <= all_pairs_at_ || !s.splitters.empty()) continue;
      const int64_t taken = SampleSize(size, j);
      fits |= taken == t;
      pairs += 0.5 * static_cast<double>(taken * (taken - 1));
    }
    if (j > 2 && !fits) break;
    const double cost = (round_cost_ + pairs) / j;
    if (j == 2 || cost < best) {
      best = cost;
      bits = j;
    }
  }
  return bits;
}

// 2^bits - 1, or less where that were more than half of the segment.
int64_t SortPlan::SampleSize(int64_t size, int bits) {
  int64_t t = 3;
  while (bits-- > 2 && 2 * (2 * t + 1) <= size) t = 2 * t + 1;
  return t;
}

// The bits by which one level splits: those for which (comparisons + a level's cost) per bit is
// least.
int SortPlan::SplitBits(double live) const {
  int best = 1;
  for (int b = 2; b <= 8; ++b) {
    const auto cost = [&](int bits) { return (live * ((1 << bits) - 1) + round_cost_) / bits; };
    if (cost(b) < cost(best)) best = b;
  }
  return best;
}

void SortPlan::Choose() {
  double live = 0, all_pairs = 0, splitting = 0;
  for (const Segment& s : segments_) {
    const double size = static_cast<double>(s.end - s.begin);
    live += size;
    all_pairs += size * (size - 1) / 2;
    if (size > static_cast<double>(all_pairs_at_) && !s.splitters.empty()) splitting += size;
  }
  // Any other way takes two more levels at least, and a comparison per element.
  const bool finish = all_pairs <= 2 * round_cost_ + live;
  const int sample = SampleBits(), split = SplitBits(splitting);
  for (Segment& s : segments_) {
    const int64_t size = s.end - s.begin;
    if (finish || size <= all_pairs_at_) {
      s.kind = kAllPairs;
    } else if (s.splitters.empty()) {
      s.kind = kSample;
      s.pivots = static_cast<int>(SampleSize(size, sample));
    } else {
      s.kind = kSplit;
      int b = split;
      while ((1 << b) - 1 > static_cast<int>(s.splitters.size())) --b;
      s.pivots = (1 << b) - 1;
    }
  }
}

bool SortPlan::Next() {
  left_.clear();
  right_.clear();
  if (segments_.empty()) return false;
  Choose();
  int64_t pairs = 0;
  for (const Segment& s : segments_) {
    const int64_t size = s.kind == kSample ? s.pivots : s.end - s.begin;
    pairs += s.kind == kSplit ? s.pivots * size : size * (size - 1) / 2;
  }
  CheckedWords(pairs, 1);  // (two lists of half words)
  left_.reserve(pairs);
  right_.reserve(pairs);
  for (Segment& s : segments_) {
    s.first_pair = static_cast<int64_t>(left_.size());
    const int32_t* elements = order_.data() + s.begin;
    int64_t size = s.end - s.begin;
    if (s.kind == kSample) {
      s.splitters.assign(elements, elements + s.pivots);
      size = s.pivots;
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
