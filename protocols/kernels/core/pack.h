// Packing of the low `width` bits of words, back to back, little endian.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PACK_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PACK_H_

#include <cstdint>

namespace tfe_bench {

// (static: each file has its own, compiled for its instruction set)
static inline int64_t PackedBytes(int64_t n, int width) { return (n * width + 7) / 8; }

// Elements [begin, end), cut at n.  begin must be a multiple of 8 (it then starts on a byte).
// Bits of x above the width are ignored: callers need not clear them.
void PackRange(const uint64_t* x, int64_t n, int width, uint8_t* out, int64_t begin, int64_t end);
void UnpackRange(const uint8_t* packed, int64_t n, int width, uint64_t* out, int64_t begin,
                 int64_t end);

// The compiled paths behind these, for widths below 64.  They access n words and their
// PackedBytes, nothing else.  Only pack.cc and the tests call them directly.
namespace internal {

// pack.cc
void PackPortable(const uint64_t* x, int64_t n, int width, uint8_t* out);
void UnpackPortable(const uint8_t* packed, int64_t n, int width, uint64_t* out);

// pack_avx2.cc (packing: the portable path is as fast)
void UnpackAvx2(const uint8_t* packed, int64_t n, int width, uint64_t* out);

// pack_avx512.cc
void PackAvx512(const uint64_t* x, int64_t n, int width, uint8_t* out);
void UnpackAvx512(const uint8_t* packed, int64_t n, int width, uint64_t* out);

}  // namespace internal
}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PACK_H_
