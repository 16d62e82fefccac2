// The same library through ctypes: sessions, the transport's side of the channel, sort plans.
// Functions that can fail write a text into `error` (capacity kErrorBytes) and return -1.  No
// exception leaves: Python's process is the worker.
#include <string.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <new>
#include <vector>

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/gemm.h"
#include "protocols/kernels/core/memory.h"
#include "protocols/kernels/core/session.h"
#include "protocols/kernels/core/sort_plan.h"
#include "protocols/kernels/core/timeline.h"

using tfe_bench::Error;
using tfe_bench::FindSession;
using tfe_bench::Session;
using tfe_bench::Tag;
using tfe_bench::Timeline;

namespace {

constexpr size_t kErrorBytes = 512;
constexpr char kGone[] = "the session has ended";

// 0, or -1 and the text of an error.
int64_t Result(char* error, const Error& why) {
  if (why.empty()) return 0;
  std::snprintf(error, kErrorBytes, "%s", why.c_str());
  return -1;
}

// Called while an exception is handled.
Error Thrown() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "this host's memory does not hold what was asked for";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// The Error that fn(session) returns.
template <typename Fn>
int64_t Try(int64_t handle, char* error, Fn fn) try {
  auto s = FindSession(handle);
  return Result(error, s ? fn(*s) : kGone);
} catch (const std::exception&) {
  return Result(error, Thrown());
}

// The result of fn(session); `otherwise` without a session.
template <typename Fn>
int64_t Ask(int64_t handle, int64_t otherwise, Fn fn) try {
  auto s = FindSession(handle);
  return s ? fn(*s) : otherwise;
} catch (const std::exception&) {
  return otherwise;
}

// The same of what keeps the session's books: one that throws has ended it.
template <typename Fn>
int64_t Keep(int64_t handle, int64_t otherwise, Fn fn) {
  return Ask(handle, otherwise, [&](Session& s) -> int64_t {
    try {
      return fn(s);
    } catch (const std::exception&) {
      s.Abort(Thrown());
      return otherwise;
    }
  });
}
template <typename Fn>
void Do(int64_t handle, Fn fn) {
  Keep(handle, 0, [&](Session& s) { return fn(s), 0; });
}

// Copies what there is room for; returns how many there are.
template <typename T>
int64_t Copy(const std::vector<T>& from, T* to, int64_t capacity) {
  std::copy_n(from.begin(), std::min<int64_t>(capacity, from.size()), to);
  return from.size();
}

}  // namespace

extern "C" {

// Bumped with every change of the ops or of the wire format; part of the handshake.
int64_t tfe_abi() { return 7; }
// Found by the loader in the file itself, before anything is loaded.
const char* tfe_built_for() {
  return "tfe_bench ops built for TensorFlow " TFE_BENCH_TF_VERSION;
}

// Bytes that can be allocated now, or the largest number if the system does not report them.
int64_t tfe_available_memory() {
  return static_cast<int64_t>(std::min<uint64_t>(tfe_bench::AvailableMemory(), INT64_MAX));
}

// 0: fine, 1: no AES instructions, 2: no AVX2/BMI2.
int64_t tfe_cpu_check() {
  if (!tfe_bench::AesAvailable()) return 1;
  return tfe_bench::Cpu().avx2 && tfe_bench::Cpu().bmi2 ? 0 : 2;
}
const char* tfe_isa() { return tfe_bench::IsaName(); }
// The instruction set by which this processor multiplies wrongly; null: none.
const char* tfe_wrong_isa() try {
  return tfe_bench::FindWrongIsa();
} catch (const std::exception&) {
  return "unknown";  // (no memory for the test)
}

int64_t tfe_session_new(int64_t party, const uint8_t* keys, int64_t simulated) try {
  uint8_t copy[3][16];
  std::memcpy(copy, keys, sizeof(copy));
  const int64_t handle = tfe_bench::RegisterSession(
      std::make_shared<Session>(static_cast<int>(party), copy, simulated != 0));
  explicit_bzero(copy, sizeof(copy));
  return handle;
} catch (const std::exception&) {
  return 0;
}

void tfe_session_drop(int64_t handle) {
  Do(handle, [&](Session& s) {
    s.Abort("");
    tfe_bench::DropSession(handle);
  });
}

int64_t tfe_session_link(int64_t handle, int64_t peer, int64_t other, char* error) {
  return Try(handle, error, [&](Session& a) -> Error {
    auto b = FindSession(other);
    if (!b) return kGone;
    if (!a.simulated() || !b->simulated()) return "only simulated sessions can be linked";
    a.LinkInMemory(static_cast<int>(peer), b);
    return "";
  });
}

int64_t tfe_session_fault(int64_t handle, int64_t fault, char* error) {
  return Try(handle, error,
             [&](Session& s) { return s.SetFault(static_cast<tfe_bench::Fault>(fault)); });
}

int64_t tfe_session_replay(int64_t handle, int64_t steps, char* error) {
  return Try(handle, error, [&](Session& s) { return s.Replay(steps); });
}

int64_t tfe_session_alter(int64_t handle, uint64_t hi, uint64_t lo, const uint64_t* words,
                          int64_t count, char* error) {
  return Try(handle, error, [&](Session& s) {
    return s.Alter(hi, lo, words, static_cast<size_t>(count));
  });
}

int64_t tfe_step_begin(int64_t handle, int64_t step, int64_t control, int64_t run_ahead,
                       char* error) {
  return Try(handle, error, [&](Session& s) {
    return s.BeginStep(step, control ? Session::kControl : Session::kGraph, run_ahead);
  });
}
void tfe_step_end(int64_t handle, int64_t step) {
  Do(handle, [&](Session& s) { s.EndStep(step); });
}

void tfe_abort(int64_t handle, const char* why) {
  Do(handle, [&](Session& s) { s.Abort(why); });
}
int64_t tfe_aborted(int64_t handle, char* error) {
  return Try(handle, error, [](Session& s) { return s.aborted(); });
}

int64_t tfe_next_due(int64_t handle, int64_t peer) {
  return Keep(handle, -1, [&](Session& s) { return s.NextDue(static_cast<int>(peer)); });
}
int64_t tfe_next_blob(int64_t handle, int64_t peer, uint8_t* out, int64_t small, int64_t limit,
                      int64_t timeout_ms) {
  return Keep(handle, Session::kOver, [&](Session& s) {
    return s.NextBlob(static_cast<int>(peer), out, small, limit, static_cast<int>(timeout_ms));
  });
}
void tfe_set_wake(int64_t handle, int64_t peer, int64_t fd) {
  Do(handle, [&](Session& s) { s.SetWake(static_cast<int>(peer), static_cast<int>(fd)); });
}
int64_t tfe_pop(int64_t handle, int64_t peer, uint8_t* out, int64_t limit) {
  return Keep(handle, -1, [&](Session& s) { return s.Pop(static_cast<int>(peer), out, limit); });
}
int64_t tfe_push(int64_t handle, int64_t peer, const uint8_t* blob, int64_t size, char* error) {
  return Try(handle, error,
             [&](Session& s) { return s.Push(static_cast<int>(peer), blob, size); });
}
int64_t tfe_drain(int64_t handle, int64_t timeout_ms) {
  return Ask(handle, 0, [&](Session& s) { return s.Drain(static_cast<int>(timeout_ms)) ? 1 : 0; });
}
void tfe_shape(int64_t handle, int64_t peer, int64_t delay_us, int64_t bytes_per_second) {
  Do(handle, [&](Session& s) { s.Shape(static_cast<int>(peer), delay_us, bytes_per_second); });
}

// A small control message outside any graph; the step must be open.  Tags use site 0.
int64_t tfe_control_send(int64_t handle, int64_t peer, int64_t step, const uint8_t* data,
                         int64_t size, char* error) {
  return Try(handle, error, [&](Session& s) {
    auto keep = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
    return s.Send(static_cast<int>(peer), Tag{static_cast<uint64_t>(step), 0, 0, 0}, false, "",
                  reinterpret_cast<const uint8_t*>(keep->data()), keep->size(), keep);
  });
}
int64_t tfe_control_recv(int64_t handle, int64_t peer, int64_t step, uint8_t* out, int64_t size,
                         char* error) {
  return Try(handle, error, [&](Session& s) {
    auto received = std::make_shared<std::promise<Error>>();  // until the callback is done with it
    s.Recv(static_cast<int>(peer), Tag{static_cast<uint64_t>(step), 0, 0, 0}, 0, size,
           [out, received](const Error& failed, tfe_bench::Message message) {
             if (failed.empty()) std::memcpy(out, message.data.get(), message.size);
             received->set_value(failed);
           });
    return received->get_future().get();
  });
}

// The masks of a running step, for it and for one step of a later session; returns their number, or 0
// if KeepMasks returns none.
int64_t tfe_masks_keep(int64_t handle, int64_t step) {
  return Ask(handle, 0, [&](Session& s) -> int64_t {
    auto masks = s.KeepMasks(step);
    return masks ? tfe_bench::RegisterSource(std::move(masks)) : 0;
  });
}
int64_t tfe_masks_use(int64_t handle, int64_t step, int64_t masks, char* error) {
  return Try(handle, error, [&](Session& s) -> Error {
    auto source = tfe_bench::TakeSource(masks);
    if (!source) return "the masks of this material have been used: refusing to use them twice";
    return s.UseMasks(step, std::move(source));
  });
}
void tfe_masks_drop(int64_t masks) { tfe_bench::TakeSource(masks); }
// Takes aside a message of a step and calls take(data, size, place), place being peer, site,
// iteration and slot.  1: done, 0: none came in time, -1: the session has ended.
int64_t tfe_collect(int64_t handle, int64_t step, int64_t timeout_ms,
                    void (*take)(const uint8_t*, int64_t, const int64_t*)) {
  return Ask(handle, -1, [&](Session& s) -> int64_t {
    const auto got = s.Collect(step, static_cast<int>(timeout_ms));
    if (got.peer < 0) return got.over ? -1 : 0;
    const int64_t place[4] = {got.peer, got.tag.site, got.tag.iteration, got.tag.slot};
    take(got.message.data.get(), static_cast<int64_t>(got.message.size), place);
    return 1;
  });
}
int64_t tfe_feed(int64_t handle, int64_t peer, int64_t step, const int64_t place[3],
                 const uint8_t* data, int64_t size, char* error) {
  return Try(handle, error, [&](Session& s) {
    const Tag tag{static_cast<uint64_t>(step), static_cast<uint32_t>(place[0]),
                  static_cast<uint32_t>(place[1]), static_cast<uint32_t>(place[2])};
    return s.Feed(static_cast<int>(peer), tag, data, static_cast<size_t>(size));
  });
}
// 1: at most these bytes of what was fed are in memory, or the session has ended; 0: not in time.
int64_t tfe_wait_fed(int64_t handle, int64_t peer, int64_t most, int64_t timeout_ms) {
  return Ask(handle, 1, [&](Session& s) {
    return s.WaitFed(static_cast<int>(peer), static_cast<uint64_t>(most),
                     static_cast<int>(timeout_ms));
  });
}

// out: payload sent to party 0..2, frames sent to 0..2, messages sent to 0..2, payload received.
void tfe_counters(int64_t handle, uint64_t out[12]) {
  Do(handle, [&](Session& s) {
    const auto c = s.counters();
    std::memcpy(out, &c, sizeof(c));
  });
}
void tfe_reset_counters(int64_t handle) {
  Do(handle, [](Session& s) { s.ResetCounters(); });
}
// Pairs (with_dealing, ahead), one per finished step; returns how many there are.
int64_t tfe_depths(int64_t handle, tfe_bench::Depth* out, int64_t capacity) {
  return Ask(handle, 0, [&](Session& s) { return Copy(s.StepDepths(), out, capacity); });
}

void tfe_record(int64_t handle, int64_t on) {
  Do(handle, [&](Session& s) { s.SetRecording(on != 0); });
}
int64_t tfe_records(int64_t handle, tfe_bench::PadRecord* out, int64_t capacity) {
  return Ask(handle, 0, [&](Session& s) { return Copy(s.Records(), out, capacity); });
}

// level: Timeline::Level.  Forgets what was seen before.
void tfe_observe(int64_t handle, int64_t level) {
  Do(handle, [&](Session& s) { s.timeline().Observe(static_cast<Timeline::Level>(level)); });
}
// out: ns waited for party 0..2, ns packing, ns unpacking, events left out.
void tfe_observed(int64_t handle, uint64_t out[6]) {
  static_assert(sizeof(Timeline::Totals) == 6 * sizeof(uint64_t), "what Python reads");
  Do(handle, [&](Session& s) {
    const auto totals = s.timeline().totals();
    std::memcpy(out, &totals, sizeof(totals));
  });
}
// Returns how many there are; none without memory for a copy: it only shows where the time went.
int64_t tfe_events(int64_t handle, Timeline::Event* out, int64_t capacity) {
  static_assert(sizeof(Timeline::Event) == 64, "what Python reads");
  return Ask(handle, 0, [&](Session& s) { return Copy(s.timeline().events(), out, capacity); });
}
// The clock of its times.
int64_t tfe_now() { return Timeline::Now(); }

void* tfe_plan_new(int64_t rows, int64_t n, int64_t all_pairs_at, double round_cost) try {
  return new tfe_bench::SortPlan(rows, n, all_pairs_at, round_cost);
} catch (const std::exception&) {
  return nullptr;
}
void tfe_plan_drop(void* plan) { delete static_cast<tfe_bench::SortPlan*>(plan); }
// Number of pairs of the next level, 0 when done, -1 when memory does not hold them.
int64_t tfe_plan_next(void* plan, const int32_t** left, const int32_t** right) try {
  auto* p = static_cast<tfe_bench::SortPlan*>(plan);
  if (!p->Next()) return 0;
  *left = p->left().data();
  *right = p->right().data();
  return p->left().size();
} catch (const std::exception&) {
  return -1;
}
// 0 when the answers fit an order, -1 when they contradict each other, -2 without memory.
int64_t tfe_plan_answer(void* plan, const uint64_t* bits) try {
  return static_cast<tfe_bench::SortPlan*>(plan)->Answer(bits) ? 0 : -1;
} catch (const std::exception&) {
  return -2;
}
const int32_t* tfe_plan_order(void* plan) {
  return static_cast<tfe_bench::SortPlan*>(plan)->order().data();
}

}  // extern "C"
