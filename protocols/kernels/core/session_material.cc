// Material ahead of time: messages of a step that were taken aside, and are fed to a later step under the same
// masks.
#include <string.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "protocols/kernels/core/buffers.h"
#include "protocols/kernels/core/frame.h"
#include "protocols/kernels/core/session.h"

namespace tfe_bench {

KeptMasks::~KeptMasks() { explicit_bzero(keys, sizeof(keys)); }

std::shared_ptr<KeptMasks> Session::KeepMasks(int64_t step) {
  auto source = std::make_shared<KeptMasks>();
  source->party = party_;
  source->step = step;
  for (int j = 0; j < 3; ++j) {
    if (!has_key_[j]) continue;
    uint8_t derived[16];
    // Site 0 and dealer 3 belong to no mask.
    AesCtr(keys_[j], static_cast<uint64_t>(step - replayed_steps_), ~uint64_t{0}, 1, derived);
    ExpandAesKey(derived, &source->keys[j]);
    explicit_bzero(derived, sizeof(derived));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!open_steps_.count(step) || !sources_.emplace(step, source).second) return nullptr;
  has_sources_ = true;
  return source;
}

Error Session::UseMasks(int64_t step, std::shared_ptr<KeptMasks> source) {
  if (source->party != party_) return "the masks of another party";
  if (source->used.exchange(true)) return "the masks of this material have been used: refusing to use them twice";
  std::lock_guard<std::mutex> lock(mutex_);
  if (!open_steps_.count(step)) return "step " + std::to_string(step) + " is not running";
  if (!sources_.emplace(step, std::move(source)).second) return "a step uses one material";
  has_sources_ = true;
  return "";
}

std::shared_ptr<const KeptMasks> Session::SourceOf(int64_t step) {
  if (!has_sources_) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = sources_.find(step);
  return it == sources_.end() ? nullptr : it->second;
}

Session::Collected Session::Collect(int64_t step, int timeout_ms) {
  const Tag first{static_cast<uint64_t>(step), 1, 0, 0};
  const Tag end{static_cast<uint64_t>(step) + 1, 0, 0, 0};
  Collected out;
  std::unique_lock<std::mutex> lock(mutex_);
  collecting_ = true;
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    if (!aborted_.empty()) return true;
    for (int p = 0; p < 3 && out.peer < 0; ++p) {
      auto& arrived = peers_[p].arrived;
      const auto it = arrived.lower_bound(first);
      if (it == arrived.end() || !(it->first < end)) continue;
      out.peer = p;
      out.tag = it->first;
      out.message = std::move(it->second);
      peers_[p].unasked -= out.message.size;
      arrived.erase(it);
    }
    return out.peer >= 0;
  });
  out.over = !aborted_.empty();
  return out;
}

struct Session::FedCredit {
  FedCredit(std::weak_ptr<Session> s, int p, uint64_t b)
      : session(std::move(s)), peer(p), bytes(b) {}
  ~FedCredit() {
    auto s = session.lock();
    if (!s) return;
    std::lock_guard<std::mutex> lock(s->mutex_);
    s->fed_[peer] -= bytes;
    s->changed_.notify_all();
  }
  FedCredit(const FedCredit&) = delete;
  FedCredit& operator=(const FedCredit&) = delete;
  std::weak_ptr<Session> session;
  int peer;
  uint64_t bytes;
};

bool Session::WaitFed(int peer, uint64_t most, int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return !aborted_.empty() || fed_[peer] <= most; });
}

Error Session::Feed(int peer, const Tag& tag, const uint8_t* data, size_t size) {
  // Declared before the lock, so released after it: a message's credit takes the lock.
  Message message;
  Done done;
  Error error;
  message.data = AlignedBuffer(size);
  std::memcpy(message.data.get(), data, size);
  message.size = size;
  message.depth.with_dealing = 1;  // it was sent before, so that it counts as no online round
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) return aborted_;
    if (tag.site == 0 || !open_steps_.count(static_cast<int64_t>(tag.step))) {
      return "step " + std::to_string(tag.step) + " is not running: refusing its material";
    }
    Peer& from = peers_[peer];
    if (!from.seen_in.insert(tag).second) return "a message of the material came twice";
    fed_[peer] += size;
    message.credit = std::make_shared<FedCredit>(weak_from_this(), peer, size);
    const auto asked = from.waiting.find(tag);
    if (asked == from.waiting.end()) {
      from.unasked += size;
      from.arrived.emplace(tag, std::move(message));
      return "";
    }
    if (asked->second.expected != size) {
      error = "the material has " + std::to_string(size) + " bytes where " +
              std::to_string(asked->second.expected) + " were due";
    }
    if (error.empty()) NoteDelivery(peer, tag, asked->second.index, message);
    done = std::move(asked->second.done);
    from.waiting.erase(asked);
  }
  done(error, error.empty() ? std::move(message) : Message{});
  return error;
}

namespace {
std::mutex sources_mutex;
std::map<int64_t, std::shared_ptr<KeptMasks>>& Sources() {
  static auto* sources = new std::map<int64_t, std::shared_ptr<KeptMasks>>();
  return *sources;
}
int64_t next_source = 1;
}  // namespace

int64_t RegisterSource(std::shared_ptr<KeptMasks> source) {
  std::lock_guard<std::mutex> lock(sources_mutex);
  Sources()[next_source] = std::move(source);
  return next_source++;
}

std::shared_ptr<KeptMasks> TakeSource(int64_t handle) {
  std::lock_guard<std::mutex> lock(sources_mutex);
  const auto it = Sources().find(handle);
  if (it == Sources().end()) return nullptr;
  auto source = std::move(it->second);
  Sources().erase(it);
  return source;
}

}  // namespace tfe_bench
