#include "protocols/kernels/core/timeline.h"

#include <time.h>

#include <algorithm>
#include <chrono>

namespace tfe_bench {
namespace {

// Asking for the processor time is a system call of about a microsecond: not twice in this time.
constexpr int64_t kApart = 20'000;

int64_t ProcessorTime() {
  timespec t;
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0) return 0;
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

int64_t Timeline::Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Timeline::Observe(Level level) {
  std::lock_guard<std::mutex> lock(mutex_);
  totals_ = Totals{};
  events_.clear();
  events_.shrink_to_fit();
  step_ = 0;
  Mark(Now());
  level_ = level;
}

void Timeline::Mark(int64_t now) {
  marked_ = now;
  processor_ = ProcessorTime();
}

void Timeline::Add(const Event& event) {
  if (level_ != kEvents) return;
  if (events_.size() < kMost) {
    events_.push_back(event);
  } else {
    ++totals_.left_out;
  }
}

void Timeline::StepBegan(uint64_t step) {
  if (!on()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  step_ = step;
  step_began_ = Now();
  Mark(step_began_);
}

void Timeline::StepEnded(uint64_t step) {
  if (!on()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (step != step_) return;  // it began before the timeline was on
  Add({step_began_, Now(), 0, step, 0, 0, 0, 0, kStep, -1, 0});
}

void Timeline::Acted() {
  if (!on()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = Now();
  if (now - marked_ > kApart) Mark(now);
}

void Timeline::Came(int peer, uint64_t step, uint32_t site) {
  if (!on()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = Now(), passed = now - marked_;
  if (passed <= kApart) return;
  const int64_t used = ProcessorTime();
  const int64_t idle = passed - std::min(passed, std::max<int64_t>(0, used - processor_));
  totals_.waited[peer] += static_cast<uint64_t>(idle);
  // Where in this time the idle part lies is not known: work follows what woke it up, so at the end.
  if (idle > 0) Add({now - idle, now, idle, step, 0, site, 0, 0, kWaited, peer, 0});
  marked_ = now;
  processor_ = used;
}

void Timeline::Message(const Event& event) {
  if (level_.load(std::memory_order_relaxed) != kEvents) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Add(event);
}

void Timeline::Packed(int64_t since) {
  std::lock_guard<std::mutex> lock(mutex_);
  totals_.packed += static_cast<uint64_t>(Now() - since);
}

void Timeline::Unpacked(int64_t since) {
  std::lock_guard<std::mutex> lock(mutex_);
  totals_.unpacked += static_cast<uint64_t>(Now() - since);
}

Timeline::Totals Timeline::totals() {
  std::lock_guard<std::mutex> lock(mutex_);
  return totals_;
}

std::vector<Timeline::Event> Timeline::events() {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_;
}

}  // namespace tfe_bench
