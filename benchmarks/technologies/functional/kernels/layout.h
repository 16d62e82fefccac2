// How numbers and points lie in memory.  No functions: files for one instruction set include it.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_LAYOUT_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_LAYOUT_H_

#include <cstdint>

namespace tfe_bench {
namespace curve {

// Five limbs of 51 bits, low first.
struct Field {
  uint64_t limb[5];
};

// x = X / Z, y = Y / Z, x y = T / Z; all tight.
struct Point {
  Field x, y, z, t;
};

// y + x, y - x and 2 d x y of a point with Z = 1; all tight.  As long as two lines of a cache.
struct Affine {
  Field sum, difference, product;
  uint64_t padding;
};

// Of a multiplication by a secret number: doubles so often, then adds an entry of a table, the
// neutral point where `at` is not one of kTable, or subtracts it where `negative` is all ones.
constexpr int kTable = 8;
struct Step {
  const Affine* table;
  uint64_t at, negative;
  int doublings;  // public
};

// A public point to add or subtract.
struct Term {
  const Affine* point;
  bool negative;
};

// What takes nearly all the time, for one instruction set.
struct Sums {
  // In constant time.
  void (*run)(Point* p, const Step* steps, int64_t count);
  // Of public points.
  void (*add)(Point* p, const Term* terms, int64_t count);
  // sum of digit[j] points[index[j]] with |digit| <= half, with scratch for half + 1 points.
  void (*buckets)(Point* p, const Affine* points, const int32_t* index, const int32_t* digit,
                  int64_t count, Point* scratch, uint8_t* used, int64_t half);
};

const Sums& SumsHere();
// For processors with AVX-512 IFMA: four products at once.
const Sums* SumsIfma();

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_LAYOUT_H_
