// Products of ciphertexts by public numbers: what Decrypt computes.  Nothing here is secret.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_PRODUCTS_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_PRODUCTS_H_

#include <cstdint>
#include <vector>

#include "benchmarks/technologies/functional/kernels/point.h"

namespace tfe_bench {
namespace curve {

// Multiples 1 to 2^(width - 1) of 2^(width w) p for each window w: multiplies p by any number with
// one addition for each window.
class WindowTable {
 public:
  WindowTable(const Point& p, int width);
  // accumulated - k p for k below 2^254, as 32 bytes.
  Point SubtractMultiple(Point accumulated, const uint8_t k[32]) const;
  // The width with the fewest additions for this many numbers.
  static int BestWidth(int64_t numbers);

 private:
  int width_;
  std::vector<Affine> entry_;
};

// Rows of a sparse matrix: row i has value[j] in column index[j] for start[i] <= j < start[i + 1].
struct Rows {
  const int64_t* start;
  const int32_t* index;
  const int64_t* value;
};

// Sums of value[j] p[index[j]] over row after row, |value| <= 2^32.
class Products {
 public:
  // Looks over rows begin to end, and may prepare multiples of the points that serve them all.
  Products(const Affine* points, int64_t count, const Rows& rows, int64_t begin, int64_t end);
  Point Row(int64_t row);

 private:
  Point Buckets(int64_t row, int bits);
  Point Digits(int64_t row, int bits);
  int BitsOf(int64_t row) const;

  const Affine* points_;
  Rows rows_;
  std::vector<Affine> multiple_;  // 1 to 8 times each point; empty where it does not pay
  std::vector<Point> bucket_;
  std::vector<uint8_t> used_;
  std::vector<int32_t> digit_;
  std::vector<Term> terms_;
};

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_PRODUCTS_H_
