// Discrete logarithms within bounds, by baby steps and giant steps (Shanks, 1971).  Public.
//
// One table of baby steps serves all targets: j times four times the base point, for j up to 2^log2,
// known by bits of its y alone, so that j and -j share a place.  Giant steps come in pairs, too: a
// target plus and minus the same step share what has to be inverted, and all targets share the one
// inversion.  A place in the table only suggests: what is found has been multiplied out and compared
// with the target.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_LOGARITHMS_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_LOGARITHMS_H_

#include <cstdint>

#include "benchmarks/technologies/functional/kernels/point.h"

namespace tfe_bench {
namespace curve {

constexpr int kLeastLog2 = 4, kMostLog2 = 28;

// Open addressing: twice as many places as steps, each the number of a step below 32 further bits
// of its y, or 0.
inline int64_t PlacesFor(int log2) { return int64_t{2} << log2; }

// Fills PlacesFor(log2) zeros.
void FillTable(uint64_t* places, int log2);

// logarithm[i] for point i with |logarithm| <= bound, where found[i] becomes 1, else 0.
void FindLogarithms(const uint64_t* places, int log2, const Point* points, int64_t count,
                    int64_t bound, int64_t* logarithm, uint8_t* found);

// The same for one point by walking from 0 outwards: what the others are compared with.
bool WalkToLogarithm(const Point& point, int64_t bound, int64_t* logarithm);

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_LOGARITHMS_H_
