// The patches of an image that a kernel meets, laid out as the rows of a matrix.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_PATCHES_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_PATCHES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "protocols/kernels/core/conv.h"

namespace tfe_bench {

constexpr int64_t kPatchWords = int64_t{1} << 17;  // of patches laid out at a time: 1 MiB

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A ParallelFor that is not one.
inline void Serial(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& run) {
  run(0, total);
}

// Fresh pages cost as much as a small convolution: the thread keeps its buffer between calls. It
// is taken out while in use, because a thread that waits in ParallelFor may run another kernel.
class PatchBuffer {
 public:
  PatchBuffer() : words_(std::move(kept())) {
    if (!words_) words_.reset(new uint64_t[static_cast<size_t>(kPatchWords)]);
  }
  ~PatchBuffer() { kept() = std::move(words_); }
  PatchBuffer(const PatchBuffer&) = delete;
  PatchBuffer& operator=(const PatchBuffer&) = delete;

  uint64_t* data() const { return words_.get(); }

 private:
  static std::unique_ptr<uint64_t[]>& kept() {
    thread_local std::unique_ptr<uint64_t[]> words;
    return words;
  }
  std::unique_ptr<uint64_t[]> words_;
};

// The patches of output pixels [begin, end), counted through all images: for each a row of the
// words that meet kernel elements [tap, end_tap), all channels of an element side by side.
void LayOut(const ConvShape& s, const uint64_t* x, int64_t begin, int64_t end, int64_t tap,
            int64_t end_tap, uint64_t* out);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_PATCHES_H_
