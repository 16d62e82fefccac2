// The same library through ctypes: sessions, the transport's side of the channel, sort plans.
// Functions that can fail write a text into `error` (capacity kErrorBytes) and return -1.  No
// exception leaves: Python's process is the worker.
#include <string.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/session.h"
#include "protocols/kernels/core/sort_plan.h"

using tfe_bench::Error;
using tfe_bench::FindSession;
using tfe_bench::Session;
using tfe_bench::Tag;

namespace {

constexpr size_t kErrorBytes = 512;

int64_t Fail(char* error, const Error& why) {
  std::snprintf(error, kErrorBytes, "%s", why.c_str());
  return -1;
}

int64_t Result(char* error, const Error& why) { return why.empty() ? 0 : Fail(error, why); }

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

// A session whose bookkeeping could not be done is over.
void End(int64_t handle) noexcept {
  try {
    if (auto s = FindSession(handle)) s->Abort(Thrown());
  } catch (const std::exception&) {
  }
}

constexpr char kGone[] = "the session has ended";

}  // namespace

extern "C" {

// Bumped with every change of the ops or of the wire format; part of the handshake.
int64_t tfe_abi() { return 3; }
// Found by the loader in the file itself, before anything is loaded.
const char* tfe_built_for() {
  return "tfe_bench ops built for TensorFlow " TFE_BENCH_TF_VERSION;
}

// 0: fine, 1: no AES instructions, 2: no AVX2/BMI2.
int64_t tfe_cpu_check() {
  if (!tfe_bench::AesAvailable()) return 1;
  return tfe_bench::Cpu().avx2 && tfe_bench::Cpu().bmi2 ? 0 : 2;
}
const char* tfe_isa() { return tfe_bench::Cpu().avx512 ? "avx512" : "avx2"; }

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

void tfe_session_drop(int64_t handle) try {
  auto session = FindSession(handle);
  if (session) session->Abort("");
  tfe_bench::DropSession(handle);
} catch (const std::exception&) {
  End(handle);
}

int64_t tfe_session_link(int64_t handle, int64_t peer, int64_t other, char* error) try {
  auto a = FindSession(handle), b = FindSession(other);
  if (!a || !b) return Fail(error, kGone);
  if (!a->simulated() || !b->simulated()) return Fail(error, "only simulated sessions can be linked");
  a->LinkInMemory(static_cast<int>(peer), b);
  return 0;
} catch (const std::exception&) {
  return Fail(error, Thrown());
}

int64_t tfe_session_fault(int64_t handle, int64_t fault, char* error) try {
  auto s = FindSession(handle);
  return s ? Result(error, s->SetFault(static_cast<tfe_bench::Fault>(fault))) : Fail(error, kGone);
} catch (const std::exception&) {
  return Fail(error, Thrown());
}

int64_t tfe_session_replay(int64_t handle, int64_t steps, char* error) {
  auto s = FindSession(handle);
  return s ? Result(error, s->Replay(steps)) : Fail(error, kGone);
}

int64_t tfe_session_alter(int64_t handle, uint64_t hi, uint64_t lo, const uint64_t* words,
                          int64_t count, char* error) {
  auto s = FindSession(handle);
  return s ? Result(error, s->Alter(hi, lo, words, static_cast<size_t>(count)))
           : Fail(error, kGone);
}

int64_t tfe_step_begin(int64_t handle, int64_t step, int64_t control, int64_t run_ahead,
                       char* error) try {
  auto s = FindSession(handle);
  return s ? Result(error, s->BeginStep(step, control ? Session::kControl : Session::kGraph, run_ahead)) : Fail(error, kGone);
} catch (const std::exception&) {
  return Fail(error, Thrown());
}
void tfe_step_end(int64_t handle, int64_t step) try {
  if (auto s = FindSession(handle)) s->EndStep(step);
} catch (const std::exception&) {
  End(handle);
}

void tfe_abort(int64_t handle, const char* why) try {
  if (auto s = FindSession(handle)) s->Abort(why);
} catch (const std::exception&) {
  End(handle);
}
int64_t tfe_aborted(int64_t handle, char* error) try {
  auto s = FindSession(handle);
  return s ? Result(error, s->aborted()) : Fail(error, kGone);
} catch (const std::exception&) {
  return Fail(error, Thrown());
}

int64_t tfe_next_due(int64_t handle, int64_t peer) try {
  auto s = FindSession(handle);
  return s ? s->NextDue(static_cast<int>(peer)) : -1;
} catch (const std::exception&) {
  End(handle);
  return -1;
}
int64_t tfe_next_blob(int64_t handle, int64_t peer, uint8_t* out, int64_t small, int64_t limit,
                      int64_t timeout_ms) try {
  auto s = FindSession(handle);
  return s ? s->NextBlob(static_cast<int>(peer), out, small, limit, static_cast<int>(timeout_ms))
           : Session::kOver;
} catch (const std::exception&) {
  End(handle);
  return Session::kOver;
}
void tfe_set_wake(int64_t handle, int64_t peer, int64_t fd) try {
  if (auto s = FindSession(handle)) s->SetWake(static_cast<int>(peer), static_cast<int>(fd));
} catch (const std::exception&) {
  End(handle);
}
int64_t tfe_pop(int64_t handle, int64_t peer, uint8_t* out, int64_t limit) try {
  auto s = FindSession(handle);
  return s ? s->Pop(static_cast<int>(peer), out, limit) : -1;
} catch (const std::exception&) {
  End(handle);
  return -1;
}
int64_t tfe_push(int64_t handle, int64_t peer, const uint8_t* blob, int64_t size, char* error) try {
  auto s = FindSession(handle);
  return s ? Result(error, s->Push(static_cast<int>(peer), blob, size)) : Fail(error, kGone);
} catch (const std::exception&) {
  return Fail(error, Thrown());
}
int64_t tfe_drain(int64_t handle, int64_t timeout_ms) try {
  auto s = FindSession(handle);
  return s && s->Drain(static_cast<int>(timeout_ms)) ? 1 : 0;
} catch (const std::exception&) {
  return 0;
}
void tfe_shape(int64_t handle, int64_t peer, int64_t delay_us, int64_t bytes_per_second) try {
  if (auto s = FindSession(handle)) s->Shape(static_cast<int>(peer), delay_us, bytes_per_second);
} catch (const std::exception&) {
  End(handle);
}

// A small control message outside any graph; the step must be open.  Tags use site 0.
int64_t tfe_control_send(int64_t handle, int64_t peer, int64_t step, const uint8_t* data,
                         int64_t size, char* error) try {
  auto s = FindSession(handle);
  if (!s) return Fail(error, kGone);
  auto keep = std::make_shared<std::string>(reinterpret_cast<const char*>(data), size);
  return Result(error, s->Send(static_cast<int>(peer), Tag{static_cast<uint64_t>(step), 0, 0, 0},
                               false, "", reinterpret_cast<const uint8_t*>(keep->data()),
                               keep->size(), keep));
} catch (const std::exception&) {
  return Fail(error, Thrown());
}
int64_t tfe_control_recv(int64_t handle, int64_t peer, int64_t step, uint8_t* out, int64_t size,
                         char* error) try {
  auto s = FindSession(handle);
  if (!s) return Fail(error, kGone);
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  Error failed;
  s->Recv(static_cast<int>(peer), Tag{static_cast<uint64_t>(step), 0, 0, 0}, 0, size,
          [&](const Error& e, tfe_bench::Message message) {
            std::lock_guard<std::mutex> lock(mutex);
            failed = e;
            if (e.empty()) std::memcpy(out, message.data.get(), message.size);
            done = true;
            ready.notify_all();
          });
  std::unique_lock<std::mutex> lock(mutex);
  ready.wait(lock, [&] { return done; });
  return Result(error, failed);
} catch (const std::exception&) {
  return Fail(error, Thrown());
}

// out: payload sent to party 0..2, frames sent to 0..2, messages sent to 0..2, payload received.
void tfe_counters(int64_t handle, uint64_t out[12]) try {
  if (auto s = FindSession(handle)) {
    const auto c = s->counters();
    std::memcpy(out, &c, sizeof(c));
  }
} catch (const std::exception&) {
  End(handle);
}
void tfe_reset_counters(int64_t handle) try {
  if (auto s = FindSession(handle)) s->ResetCounters();
} catch (const std::exception&) {
  End(handle);
}
// Pairs (cold, ahead), one per finished step; returns how many there are.
int64_t tfe_depths(int64_t handle, uint32_t* out, int64_t capacity) try {
  auto s = FindSession(handle);
  if (!s) return 0;
  const auto depths = s->StepDepths();
  const int64_t n = std::min<int64_t>(capacity, depths.size());
  for (int64_t i = 0; i < n; ++i) {
    out[2 * i] = depths[i].cold;
    out[2 * i + 1] = depths[i].ahead;
  }
  return depths.size();
} catch (const std::exception&) {
  return 0;
}

void tfe_record(int64_t handle, int64_t on) try {
  if (auto s = FindSession(handle)) s->SetRecording(on != 0);
} catch (const std::exception&) {
  End(handle);
}
int64_t tfe_records(int64_t handle, tfe_bench::PadRecord* out, int64_t capacity) try {
  auto s = FindSession(handle);
  if (!s) return 0;
  const auto records = s->Records();
  const int64_t n = std::min<int64_t>(capacity, records.size());
  std::copy(records.begin(), records.begin() + n, out);
  return records.size();
} catch (const std::exception&) {
  return 0;
}

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
