#include "protocols/kernels/core/buffers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

namespace tfe_bench {
namespace {

// Large receive buffers are kept for the next message: the kernel clears every fresh page, which
// costs as much as the copy itself.
class BufferPool {
 public:
  std::shared_ptr<uint8_t> Take(size_t size) {
    if (size < kLeast) return Wrap(std::aligned_alloc(64, (size + 127) / 64 * 64), 0);
    size_t rounded = kLeast;
    while (rounded < size) rounded += rounded / 8 & ~size_t{4095};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto it = free_.find(rounded);
      if (it != free_.end()) {
        void* p = it->second;
        free_.erase(it);
        held_ -= rounded;
        return Wrap(p, rounded);
      }
    }
    if (rounded < kHuge) {
      return Wrap(std::aligned_alloc(4096, (rounded + 4095) / 4096 * 4096), rounded);
    }
    // Too large to be kept: pages of 2 MiB cost a tenth of clearing small ones.
    rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
    void* fresh = std::aligned_alloc(kHugePage, rounded);
    if (fresh) madvise(fresh, rounded, MADV_HUGEPAGE);
    return Wrap(fresh, 0);
  }

 private:
  static constexpr size_t kLeast = size_t{1} << 18;
  static constexpr size_t kMost = size_t{16} << 20;
  static constexpr size_t kHuge = size_t{8} << 20, kHugePage = size_t{2} << 20;

  std::shared_ptr<uint8_t> Wrap(void* p, size_t rounded) {
    if (!p) throw std::bad_alloc();
    return std::shared_ptr<uint8_t>(static_cast<uint8_t*>(p), [this, rounded](uint8_t* q) {
      if (!Keep(q, rounded)) std::free(q);
    });
  }

  bool Keep(uint8_t* q, size_t rounded) noexcept {
    if (!rounded) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    if (held_ + rounded > kMost) return false;
    try {
      free_.emplace(rounded, q);
    } catch (const std::bad_alloc&) {
      return false;
    }
    held_ += rounded;
    return true;
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  size_t held_ = 0;
};

}  // namespace

std::shared_ptr<uint8_t> AlignedBuffer(size_t size) {
  static auto* pool = new BufferPool;  // outlives every message
  return pool->Take(size);
}

}  // namespace tfe_bench
