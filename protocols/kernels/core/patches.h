// The patches of an image that a kernel meets, laid out as the rows of a matrix.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PATCHES_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PATCHES_H_

#include <cstdint>

#include "protocols/kernels/core/conv.h"
#include "protocols/kernels/core/scratch.h"

namespace tfe_bench {

constexpr int64_t kPatchWords = int64_t{1} << 17;  // of patches laid out at a time: 1 MiB

// The patches of output pixels [begin, end), counted through all images: for each a row of the
// words that meet kernel elements [tap, end_tap), all channels of an element side by side.
void LayOut(const ConvShape& s, const uint64_t* x, int64_t begin, int64_t end, int64_t tap,
            int64_t end_tap, uint64_t* out);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PATCHES_H_
