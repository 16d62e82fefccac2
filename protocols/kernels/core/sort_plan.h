// Which pairs to compare next, and the order that the answers give.  Everything here is public: it
// works on positions in a shuffled array and on revealed comparison bits, never on shares.
//
// A segment is a range of positions known to hold consecutive ranks.  It is finished by comparing
// all its pairs when that is cheap; otherwise a sample of it is sorted (by all pairs), and the sample
// then splits the segment by binary (or 2^b-ary) search, one comparison per element and bit.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_SORT_PLAN_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_SORT_PLAN_H_

#include <cstdint>
#include <vector>

namespace tfe_bench {

class SortPlan {
 public:
  // rows segments of n positions each: row r holds positions r*n .. r*n+n-1.
  // round_cost: what one more level costs, in comparisons.
  SortPlan(int64_t rows, int64_t n, int64_t all_pairs_at, double round_cost);

  // Fills the pairs of the next level; false when the order is complete.  Throws std::bad_alloc when
  // this host's memory does not hold them.
  bool Next();
  const std::vector<int32_t>& left() const { return left_; }
  const std::vector<int32_t>& right() const { return right_; }
  // bits: packed, bit i set when element left[i] < element right[i].
  // False when the answers contradict each other (keys outside the range that was promised): the
  // plan is then over.
  bool Answer(const uint64_t* bits);
  // order()[r*n + i] = position of the element of rank i of row r.
  const std::vector<int32_t>& order() const { return order_; }

 private:
  enum Kind : int32_t { kAllPairs, kSample, kSplit };
  struct Segment {
    int64_t begin, end;             // in order_
    std::vector<int32_t> splitters; // sorted elements of the segment, ascending
    Kind kind;
    int pivots;                     // kSplit: how many of the splitters are compared with;
                                    // kSample: how many elements it has
    int64_t first_pair;
  };

  void Choose();
  int SampleBits() const;
  int SplitBits(double live) const;
  static int64_t SampleSize(int64_t size, int bits);
  bool Contradiction();

  const int64_t all_pairs_at_;
  const double round_cost_;
  std::vector<int32_t> order_;
  std::vector<Segment> segments_;
  std::vector<int32_t> left_, right_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_SORT_PLAN_H_
