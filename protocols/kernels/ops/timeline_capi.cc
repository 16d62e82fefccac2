// A session's timeline through ctypes.
#include <algorithm>
#include <cstring>
#include <exception>

#include "protocols/kernels/core/session.h"
#include "protocols/kernels/core/timeline.h"

using tfe_bench::FindSession;
using tfe_bench::Timeline;

extern "C" {

// level: Timeline::Level.  Forgets what was seen before.
void tfe_observe(int64_t handle, int64_t level) {
  if (auto s = FindSession(handle)) s->timeline().Observe(static_cast<Timeline::Level>(level));
}
// out: ns waited for party 0..2, ns packing, ns unpacking, events left out.
void tfe_observed(int64_t handle, uint64_t out[6]) {
  static_assert(sizeof(Timeline::Totals) == 6 * sizeof(uint64_t), "what Python reads");
  if (auto s = FindSession(handle)) {
    const auto totals = s->timeline().totals();
    std::memcpy(out, &totals, sizeof(totals));
  }
}
// Returns how many there are.
int64_t tfe_events(int64_t handle, Timeline::Event* out, int64_t capacity) try {
  static_assert(sizeof(Timeline::Event) == 64, "what Python reads");
  auto s = FindSession(handle);
  if (!s) return 0;
  const auto events = s->timeline().events();
  std::copy_n(events.begin(), std::min<int64_t>(capacity, events.size()), out);
  return events.size();
} catch (const std::exception&) {  // no memory for a copy: it only shows where the time went
  return 0;
}
// The clock of its times.
int64_t tfe_now() { return Timeline::Now(); }

}  // extern "C"
