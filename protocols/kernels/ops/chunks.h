// What kernels share that walk over elements in chunks, with masks made on the way.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_CHUNKS_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_CHUNKS_H_

#include <algorithm>
#include <vector>

#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

constexpr int64_t kChunk = 512;  // elements; buffers of one chunk stay in the first-level cache

// Runs fn(first, count) for the chunks of n elements, on the threads that TensorFlow grants.
template <typename Fn>
void Chunks(tensorflow::OpKernelContext* context, int64_t n, int64_t cycles_each, Fn fn) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  ParallelRange(context, chunks, cycles_each * kChunk, [&](int64_t a, int64_t b) {
    for (int64_t c = a; c < b; ++c) fn(c * kChunk, std::min(kChunk, n - c * kChunk));
  });
}

// A mask's words [first, first + count); `first` must be even, and out has room for an even count.
inline void Fill(const Call& call, const PrfStream& stream, int64_t first, int64_t count,
                 uint64_t* out) {
  FillMask(*call.session, stream, first / 2, (count + 1) / 2, reinterpret_cast<uint8_t*>(out));
}

// The debug log's line of a mask that became a share: all of it, though it was made in chunks.
inline void RecordShare(const Call& call, const PrfStream& stream, int64_t n) {
  if (!call.session->recording()) return;
  std::vector<uint64_t> pad(n + 1);
  Fill(call, stream, 0, n, pad.data());
  call.session->Record(stream, kShare, pad.data(), n * 8);
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_CHUNKS_H_
