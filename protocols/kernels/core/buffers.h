// Aligned memory for received messages.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_BUFFERS_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tfe_bench {

// A buffer of `bytes` bytes; throws std::bad_alloc.
std::shared_ptr<uint8_t> AlignedBuffer(size_t size);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_BUFFERS_H_
