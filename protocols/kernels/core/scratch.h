// Buffers for packed operands and patches.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_SCRATCH_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_SCRATCH_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "protocols/kernels/core/parallel.h"

namespace tfe_bench {

// A buffer the thread keeps between calls, because fresh pages cost as much as a small product or
// convolution.
// It is taken out of its slot while in use, so that a thread which runs another product while it
// waits in ParallelFor gets a buffer of its own.
class Scratch {
 public:
  enum Slot { kA, kB, kPatches };

  Scratch(Slot slot, int64_t words) : slot_(slot), buffer_(std::move(kept(slot))) {
    if (buffer_.words >= words) return;
    buffer_.data.reset();
    void* data = std::aligned_alloc(64, static_cast<size_t>(CeilDiv(words, 8) * 64));
    if (data == nullptr) throw std::bad_alloc();
    buffer_.data.reset(static_cast<uint64_t*>(data));
    buffer_.words = words;
  }
  ~Scratch() {
    if (buffer_.words <= kMost) kept(slot_) = std::move(buffer_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  uint64_t* data() const { return buffer_.data.get(); }

 private:
  static constexpr int64_t kMost = int64_t{1} << 20;  // of words kept: 8 MiB
  struct Free {
    void operator()(uint64_t* p) const { std::free(p); }
  };
  struct Buffer {
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      data = std::move(other.data);
      words = std::exchange(other.words, 0);
      return *this;
    }
    std::unique_ptr<uint64_t, Free> data;
    int64_t words = 0;
  };

  static Buffer& kept(Slot slot) {
    thread_local Buffer buffers[3];
    return buffers[slot];
  }

  const Slot slot_;
  Buffer buffer_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_SCRATCH_H_
