#include "protocols/kernels/core/session.h"

#include <string.h>

#include <algorithm>

#include "protocols/kernels/core/frame.h"
#include "protocols/kernels/core/memory.h"
#include "protocols/kernels/core/timeline.h"

namespace tfe_bench {

Session::Session(int party, const uint8_t keys[3][16], bool simulated)
    : party_(party),
      simulated_(simulated),
      most_unasked_(HostMemory() / 4),
      timeline_(std::make_unique<Timeline>()) {
  for (int j = 0; j < 3; ++j) {
    has_key_[j] = j == party || (j + 2) % 3 == party;
    if (has_key_[j]) ExpandAesKey(keys[j], &keys_[j]);
  }
}

Session::~Session() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    link_over_ = true;
    link_changed_.notify_all();
  }
  if (link_.joinable()) link_.join();
  explicit_bzero(keys_, sizeof(keys_));
}

Error Session::BeginStep(int64_t step, StepKind kind, int64_t run_ahead) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (step <= 0 || step >> kStepBits) return "mask numbering: step out of range";
  if (step <= last_step_) {
    return "step " + std::to_string(step) + " is not above " + std::to_string(last_step_) +
           ": its masks may have been used";
  }
  last_step_ = step;
  const auto too_far_behind = [&] {
    for (int p = 0; p < 3; ++p) {
      if (p != party_ && peers_[p].done_step + run_ahead < step) return p;
    }
    return -1;
  };
  int slowest = -1;
  changed_.wait(lock, [&] {
    const int p = too_far_behind();
    if (p >= 0) slowest = p;
    return !aborted_.empty() || p < 0;
  });
  if (!aborted_.empty()) return aborted_;
  if (slowest >= 0) timeline_->Came(slowest, step, 0);
  timeline_->StepBegan(step);
  // What came early must be of this step's kind.
  const Tag first{static_cast<uint64_t>(step), 0, 0, 0};
  for (const Peer& peer : peers_) {
    auto it = peer.seen_in.lower_bound(first);
    if (it != peer.seen_in.end() && it->step == first.step &&
        (it->site == 0) != (kind == kControl)) {
      return kOtherGraph;
    }
  }
  open_steps_.emplace(step, kind);
  return "";
}

bool Session::StepIsOpen(int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  return open_steps_.count(step) > 0;
}

void Session::EndStep(int64_t step) {
  std::vector<std::shared_ptr<Session>> direct;
  std::vector<Message> unread;  // released after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_steps_.erase(step)) return;
    timeline_->StepEnded(step);
    Depth deepest;
    for (const Depth& d : recv_depths_[step]) {
      deepest.with_dealing = std::max(deepest.with_dealing, d.with_dealing);
      deepest.ahead = std::max(deepest.ahead, d.ahead);
    }
    step_depths_.push_back(deepest);
    recv_depths_.erase(step);
    last_ended_ = std::max(last_ended_, step);
    for (int p = 0; p < 3; ++p) {
      if (p == party_) continue;
      auto& in = peers_[p].seen_in;
      auto& out = peers_[p].seen_out;
      const Tag next{static_cast<uint64_t>(step) + 1, 0, 0, 0};
      in.erase(in.begin(), in.lower_bound(next));
      out.erase(out.begin(), out.lower_bound(next));
      // These can no longer be requested.
      auto& arriving = peers_[p].arriving;
      for (auto it = arriving.begin(); it != arriving.lower_bound(next); it = arriving.erase(it)) {
        if (!peers_[p].waiting.count(it->first)) peers_[p].unasked -= it->second.received;
        unread.push_back(std::move(it->second.message));
      }
      auto& arrived = peers_[p].arrived;
      for (auto it = arrived.begin(); it != arrived.lower_bound(next); it = arrived.erase(it)) {
        peers_[p].unasked -= it->second.size;
        unread.push_back(std::move(it->second));
      }
      if (in_memory_[p]) {
        if (auto peer = linked_[p].lock()) direct.push_back(std::move(peer));
      } else {
        Tag tag{static_cast<uint64_t>(step), 0, 0, 0};
        peers_[p].outbox.push_back(
            {tag, kStepDone, {}, nullptr, 0, 0, nullptr, NowMicros() + kLazyMicros});
        // Only where nothing else is due will the sender have to set itself a timer.
        if (ReleaseGathered(peers_[p]) || peers_[p].outbox.size() == 1) WakeSender(p);
      }
    }
    changed_.notify_all();
  }
  for (const auto& peer : direct) {
    peer->Accept(party_, Tag{static_cast<uint64_t>(step), 0, 0, 0}, kStepDone, {}, 0, 0, nullptr, 0);
  }
}

void Session::Abort(const Error& why) {
  // Contents of a peer's lists are released after the lock: releasing a credit takes the lock.
  std::deque<Outgoing> outbox[3];
  std::map<Tag, Arriving> arriving[3];
  std::map<Tag, Message> arrived[3];
  std::map<Tag, Waiting> waiting[3];
  std::map<int64_t, Passed> gates;
  Error error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) return;
    error = aborted_ = why.empty() ? "the session has ended" : why;
    for (int p = 0; p < 3; ++p) {
      Peer& peer = peers_[p];
      peer.outbox.swap(outbox[p]);
      peer.arriving.swap(arriving[p]);
      peer.arrived.swap(arrived[p]);
      peer.waiting.swap(waiting[p]);
      peer.flights.clear();
      peer.landed = peer.departed = 0;
    }
    gates.swap(gates_);
    changed_.notify_all();
    for (int p = 0; p < 3; ++p) WakeSender(p);
  }
  for (auto& each : waiting) {
    for (auto& w : each) w.second.done(error, {});
  }
  for (auto& gate : gates) gate.second(error);
}

Error Session::aborted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

Session::Counters Session::counters() {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

void Session::ResetCounters() {
  std::lock_guard<std::mutex> lock(mutex_);
  counters_ = Counters{};
  step_depths_.clear();
}

std::vector<Depth> Session::StepDepths() {
  std::lock_guard<std::mutex> lock(mutex_);
  return step_depths_;
}

namespace {
std::mutex registry_mutex;
std::map<int64_t, std::shared_ptr<Session>>& Registry() {
  static auto* sessions = new std::map<int64_t, std::shared_ptr<Session>>();
  return *sessions;
}
int64_t next_handle = 1;
}  // namespace

int64_t RegisterSession(std::shared_ptr<Session> session) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  Registry()[next_handle] = std::move(session);
  return next_handle++;
}

std::shared_ptr<Session> FindSession(int64_t handle) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto it = Registry().find(handle);
  return it == Registry().end() ? nullptr : it->second;
}

void DropSession(int64_t handle) {
  std::shared_ptr<Session> dropped;  // ends after the lock, which what it holds may want
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto it = Registry().find(handle);
  if (it == Registry().end()) return;
  dropped = std::move(it->second);
  Registry().erase(it);
}

}  // namespace tfe_bench
