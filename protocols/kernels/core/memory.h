// How much memory there is: what a peer or a shape asks for is compared with it.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_MEMORY_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_MEMORY_H_

#include <cstdint>

namespace tfe_bench {

// Bytes that this process may use at most: the host's, or what its control group grants.
uint64_t HostMemory();

// Bytes that can be allocated now without evicting other processes; UINT64_MAX if unknown.
uint64_t AvailableMemory();

// Whether `bytes` bytes can be allocated.  The system grants more than there is and kills a process
// later: check before large allocations.
bool FitsMemory(uint64_t bytes);

// a * b, the size in words of a buffer; throws std::bad_alloc if that does not fit.
int64_t CheckedWords(int64_t a, int64_t b);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_MEMORY_H_
