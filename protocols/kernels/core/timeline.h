// A timeline of one party's session: idle time spent waiting for messages, and on demand every
// message, wait and step.  Holds names (numbers), sizes and times, never data.
//
// A wait is the idle part of the time before a message arrives that a receive waits for: from the
// last thing that the session did (a send, such an arrival, the beginning of a step) until it comes,
// less the processor time that the whole process used during it.  Several threads that compute at
// once use more processor time than passes, so waits are rather too short than too long; a thread
// that is ready but finds no processor free looks like one that waits.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_TIMELINE_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_TIMELINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tfe_bench {

class Timeline {
 public:
  enum Level { kOff = 0, kTotals = 1, kEvents = 2 };
  enum Kind : int32_t { kSent = 0, kReceived = 1, kWaited = 2, kStep = 3 };

  // Times in nanoseconds of the steady clock.  Sent: from the moment that the transport took its
  // first byte to the last, `about` when it was queued.  Received: from its first byte to its last,
  // `about` when a receive asked for it (0: it came before).  Waited: `about` is how long.
  struct Event {
    int64_t begin, end, about;
    uint64_t step, bytes;
    uint32_t site, iteration, slot;
    int32_t kind, peer, run_ahead;
  };
  struct Totals {
    uint64_t waited[3];         // idle until a message of party 0..2 came, ns
    uint64_t packed, unpacked;  // copying messages into and out of blobs, ns
    uint64_t left_out;          // events beyond kMost
  };
  static constexpr size_t kMost = size_t{1} << 18;

  static int64_t Now();

  // Starts again from empty.
  void Observe(Level level);
  bool on() const { return level_.load(std::memory_order_relaxed) != kOff; }

  void StepBegan(uint64_t step);
  void StepEnded(uint64_t step);
  // The session did something: what follows is a new wait.
  void Acted();
  // A message came, or another thing of `peer`, that this party had been waiting for.
  void Came(int peer, uint64_t step, uint32_t site);
  void Message(const Event& event);
  void Packed(int64_t since);
  void Unpacked(int64_t since);

  Totals totals();
  std::vector<Event> events();

 private:
  void Add(const Event& event);
  void Mark(int64_t now);

  std::atomic<int> level_{kOff};
  std::mutex mutex_;
  int64_t marked_ = 0, processor_ = 0;  // when, and what the process had used by then
  uint64_t step_ = 0;
  int64_t step_began_ = 0;
  Totals totals_{};
  std::vector<Event> events_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_TIMELINE_H_
