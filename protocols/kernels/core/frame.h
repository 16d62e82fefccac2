// What sessions write on the wire, and when: shared by the files that implement session.h.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_FRAME_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_FRAME_H_

#include <chrono>
#include <cstdint>

namespace tfe_bench {

// What precedes each piece of a payload on the wire.  Both ends are x86-64: little endian.
struct FrameHeader {
  uint64_t step, total, offset;
  uint32_t site, iteration, length, depth_with_dealing, depth_ahead;
  uint16_t slot, flags;
};
static_assert(sizeof(FrameHeader) == 48, "the frame header is part of the wire format");

constexpr uint16_t kRunAhead = 1;  // the dealer's messages: free when it ran ahead
constexpr uint16_t kStepDone = 2;  // carries no payload
constexpr uint16_t kReleased = 4;     // no payload either: `step` counts released run-ahead bytes
constexpr uint16_t kReport = kStepDone | kReleased;

// The report that a step is over is not urgent: it travels with the next message, or after this.
constexpr int64_t kLazyMicros = 5000;

// This many released bytes justify a separate report.
constexpr uint64_t kUrgentBytes = uint64_t{4} << 20;

// Material that the peer does not use yet is sent together: this many bytes, or after this time.
constexpr uint64_t kGatherBytes = uint64_t{512} << 10;
constexpr int64_t kGatherMicros = 1000;

constexpr char kOtherGraph[] =
    "the workers are at different points of the program: one of them traced a graph that the "
    "others did not";

inline int64_t NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_FRAME_H_
