// Packing of the low `width` bits of words, back to back, little endian.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PACK_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PACK_H_

#include <cstdint>

namespace tfe_bench {

inline int64_t PackedBytes(int64_t n, int width) { return (n * width + 7) / 8; }

// Elements [begin, end), cut at n.  begin must be a multiple of 8 (it then starts on a byte).
void PackRange(const uint64_t* x, int64_t n, int width, uint8_t* out, int64_t begin, int64_t end);
void UnpackRange(const uint8_t* packed, int64_t n, int width, uint64_t* out, int64_t begin,
                 int64_t end);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PACK_H_
