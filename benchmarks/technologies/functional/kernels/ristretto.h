// ristretto255 (RFC 9496): a group of prime order whose elements have one encoding each.
//
// An element is a class of points of edwards25519, and any point of the class stands for it.  What
// must be the same for all of them is asked of the encoding, or of four times the point.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_RISTRETTO_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_RISTRETTO_H_

#include <cstdint>

#include "benchmarks/technologies/functional/kernels/point.h"

namespace tfe_bench {
namespace curve {

// Coordinates of a point of the class; false where the bytes encode none.  In public time.
bool Decode(const uint8_t in[32], Field* x, Field* y);
void Encode(const Point& p, uint8_t out[32]);
// The encodings of *twice* the points with one inversion for all, in constant time: doubling makes
// the square root superfluous (Hamburg, "Decaf", 2015, and its authors' batch encoding).
void EncodeDoubles(const Point* points, int64_t count, uint8_t* const* out);

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_RISTRETTO_H_
