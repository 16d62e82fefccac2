// How the core's algorithms divide work, and the integers that say so.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PARALLEL_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace tfe_bench {

// Splits [0, total) into ranges, runs the function on each, possibly at the same time, and
// returns when all are done. cost_per_unit estimates CPU cycles (as for tensorflow::Shard).
using ParallelFor =
    std::function<void(int64_t total, int64_t cost_per_unit,
                       const std::function<void(int64_t begin, int64_t end)>& run)>;

// A ParallelFor that is not one.
inline void Serial(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& run) {
  run(0, total);
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PARALLEL_H_
