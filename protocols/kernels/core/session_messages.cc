// Messages: queued under their tags, delivered on request, and back-pressure on the dealer.
#include <algorithm>
#include <cstring>

#include "protocols/kernels/core/buffers.h"
#include "protocols/kernels/core/frame.h"
#include "protocols/kernels/core/session.h"
#include "protocols/kernels/core/timeline.h"

namespace tfe_bench {
namespace {

constexpr uint64_t kMaxMessage = uint64_t{1} << 34;

// A message that no receive waits for yet gets a buffer of this many times the bytes that have
// arrived, not of its announced size.
constexpr size_t kRoomFor = 16;

std::string Describe(const Tag& t) {
  return "site " + std::to_string(t.site) + ", step " + std::to_string(t.step) + ", iteration " +
         std::to_string(t.iteration) + ", message " + std::to_string(t.slot);
}

Error OtherSize(int peer, size_t size, size_t expected, const Tag& tag) {
  return "party " + std::to_string(peer) + " sent " + std::to_string(size) + " bytes where " +
         std::to_string(expected) + " were due (" + Describe(tag) + ")";
}

}  // namespace

Error Session::Send(int peer, const Tag& tag, bool run_ahead, const std::string& deps,
                    const uint8_t* data, size_t size, std::shared_ptr<void> keep_alive) {
  Depth depth;
  const uint16_t flags = run_ahead ? kRunAhead : 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) return aborted_;
    if (!open_steps_.count(static_cast<int64_t>(tag.step))) {
      return "step " + std::to_string(tag.step) + " is not running: refusing to send";
    }
    // The last line of defense against a mask used twice: one message has one tag, and every pad
    // in it carries the same site, step and iteration.
    if (!peers_[peer].seen_out.insert(tag).second) {
      const Error why = "a message would be sent twice under one mask (" + Describe(tag) + ")";
      return why;
    }
    const std::vector<Depth>& depths = recv_depths_[static_cast<int64_t>(tag.step)];
    for (size_t i = 0; i < depths.size(); ++i) {
      if (i / 8 < deps.size() && (deps[i / 8] >> (i % 8) & 1)) {
        depth.with_dealing = std::max(depth.with_dealing, depths[i].with_dealing);
        depth.ahead = std::max(depth.ahead, depths[i].ahead);
      }
    }
    if (tag.site != 0) {  // site 0 is bookkeeping between the workers, not protocol
      counters_.payload_sent[peer] += size;
      counters_.messages_sent[peer] += 1;
    }
    if (run_ahead) peers_[peer].ahead_sent += size;
    const int64_t queued = timeline_->on() ? Timeline::Now() : 0;
    timeline_->Acted();
    if (!in_memory_[peer]) {
      Peer& to = peers_[peer];
      Queue(to, {tag, flags, depth, data, size, 0, std::move(keep_alive),
                 shaped_ ? NowMicros() : 0, queued});
      if (run_ahead && GatherMaterial(to)) {
        if (to.gathered == size) WakeSender(peer);  // the first: the sender sets itself a timer
        return "";
      }
      // No message waits for material that is sent later.
      if (!(to.outbox.back().flags & kReport)) ReleaseGathered(to);
      WakeSender(peer);
      return "";
    }
    if (tag.site != 0) counters_.frame_sent[peer] += size + sizeof(FrameHeader);
    if (queued) {
      timeline_->Message({queued, queued, queued, tag.step, size, tag.site, tag.iteration, tag.slot,
                          Timeline::kSent, peer, run_ahead});
    }
  }
  const auto other = linked_[peer].lock();
  if (!other) return "party " + std::to_string(peer) + " has gone";
  return other->Accept(party_, tag, flags, depth, size, 0, data, size);
}

// Messages that a receive waits for precede run-ahead messages, which may take seconds on a slow
// link; frames carry their tags, so one may interrupt another message.
void Session::Queue(Peer& to, Outgoing message) {
  auto place = to.outbox.end();
  if (!(message.flags & kRunAhead) && message.tag.site != 0) {
    const auto first = to.outbox.begin() + static_cast<std::ptrdiff_t>(to.departed);
    while (place != first && (place - 1)->flags & kRunAhead && !(place - 1)->header) --place;
  }
  to.outbox.insert(place, std::move(message));
}

// Whether the newest message of the outbox, material, waits for more.  A peer reports kUrgentBytes
// of released material at once: while more than these are unreported, none of its receives waits
// for the newest.
bool Session::GatherMaterial(Peer& to) {
  if (shaped_) return false;
  Outgoing& newest = to.outbox.back();
  const bool may_wait = to.ahead_sent - to.ahead_freed < kUrgentBytes + newest.size;
  const int64_t now = NowMicros();
  if (!may_wait && now >= to.gather_until_us) {
    to.gathered = 0;
    to.gather_until_us = now + kGatherMicros;
  }
  newest.ready_at_us = to.gather_until_us;
  to.gathered += newest.size;
  return !may_wait && to.gathered < kGatherBytes;
}

// Makes material that waits for more due now; returns whether any may have waited.
bool Session::ReleaseGathered(Peer& to) {
  if (!to.gather_until_us) return false;
  for (auto it = to.outbox.rbegin(); it != to.outbox.rend(); ++it) {
    if (!(it->flags & kRunAhead)) continue;
    if (!it->ready_at_us) break;
    it->ready_at_us = 0;
  }
  to.gathered = 0;
  to.gather_until_us = 0;
  return true;
}

// Counts a protocol message that a receive gets.  Messages that no receive gets, such as those of a
// finished step, count nowhere.
void Session::NoteDelivery(int peer, const Tag& tag, int index, const Message& message) {
  if (tag.site == 0) return;
  counters_.payload_received[peer] += message.size;
  auto& depths = recv_depths_[static_cast<int64_t>(tag.step)];
  if (static_cast<int>(depths.size()) <= index) depths.resize(index + 1);
  depths[index] = message.depth;
}

void Session::Recv(int peer, const Tag& tag, int index, size_t expected, Done done) {
  Message message;
  Error error;
  const int64_t asked = timeline_->on() ? Timeline::Now() : 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) {
      error = aborted_;
    } else if (!open_steps_.count(static_cast<int64_t>(tag.step))) {
      error = "step " + std::to_string(tag.step) + " is not running: refusing to receive";
    } else {
      Peer& from = peers_[peer];
      auto it = from.arrived.find(tag);
      auto part = from.arriving.find(tag);
      if (it != from.arrived.end()) {
        message = std::move(it->second);
        from.arrived.erase(it);
        from.unasked -= message.size;
        if (message.size != expected) error = OtherSize(peer, message.size, expected, tag);
        if (error.empty()) NoteDelivery(peer, tag, index, message);
      } else if (from.waiting.count(tag)) {
        error = "two receives wait for one message (" + Describe(tag) + ")";
      } else if (part != from.arriving.end() && part->second.message.size != expected) {
        error = OtherSize(peer, part->second.message.size, expected, tag);
      } else {
        if (part != from.arriving.end()) from.unasked -= part->second.received;
        from.waiting.emplace(tag, Waiting{std::move(done), expected, index, asked});
        return;
      }
    }
  }
  done(error, std::move(message));
}

void Session::CancelRecv(int peer, const Tag& tag) {
  Done done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = peers_[peer].waiting.find(tag);
    if (it == peers_[peer].waiting.end()) return;
    done = std::move(it->second.done);
    peers_[peer].waiting.erase(it);
    auto part = peers_[peer].arriving.find(tag);
    if (part != peers_[peer].arriving.end()) peers_[peer].unasked += part->second.received;
  }
  done("another part of this graph call failed", {});
}

Error Session::Accept(int peer, const Tag& tag, uint16_t flags, Depth depth, uint64_t total,
                      uint64_t offset, const uint8_t* data, size_t size) {
  // Declared before the lock, so released after it: releasing a message's credit takes the lock.
  Done done;
  Message message;
  std::map<int64_t, Passed> open;
  const int64_t came = timeline_->on() ? Timeline::Now() : 0;
  int64_t first = came;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Peer& from = peers_[peer];
    if (!aborted_.empty()) return aborted_;
    if (flags & kReleased) {
      if (tag.step > from.ahead_sent) {
        return "party " + std::to_string(peer) + " let go of more than it was sent";
      }
      from.ahead_freed = std::max(from.ahead_freed, tag.step);
      if (gates_.empty() || !GateIsOpen()) return "";
      open.swap(gates_);
      timeline_->Came(peer, 0, 0);
      lock.unlock();
      for (auto& gate : open) gate.second("");
      return "";
    }
    // No peer is further ahead: it begins a step only after this party has ended an earlier one.
    const bool near = tag.step <= static_cast<uint64_t>(last_ended_ + kMostStepsAhead);
    if (!near) return "party " + std::to_string(peer) + " is at a step that is far ahead";
    if (flags & kStepDone) {
      from.done_step = std::max(from.done_step, static_cast<int64_t>(tag.step));
      changed_.notify_all();
      return "";
    }
    if (total > kMaxMessage || size > total || offset > total - size) {
      return "party " + std::to_string(peer) + " sent a malformed frame";
    }
    if (offset == 0) {
      const int64_t step = static_cast<int64_t>(tag.step);
      if (step <= last_step_ && !open_steps_.count(step) && step != last_step_) {
        return "party " + std::to_string(peer) + " sent a message of a finished step (" +
               Describe(tag) + ")";
      }
      const auto open = open_steps_.find(step);
      if (open != open_steps_.end() && (open->second == kControl) != (tag.site == 0)) {
        return kOtherGraph;
      }
      if (!from.seen_in.insert(tag).second) {
        return "party " + std::to_string(peer) + " sent a message twice (" + Describe(tag) + ")";
      }
    }
    const auto asked = from.waiting.find(tag);
    const bool waited = asked != from.waiting.end();
    if (waited && asked->second.expected != total) {
      const Error error = OtherSize(peer, total, asked->second.expected, tag);
      done = std::move(asked->second.done);
      from.waiting.erase(asked);
      lock.unlock();
      done(error, {});
      return error;
    }
    if (!waited) {
      if (size > most_unasked_ || from.unasked > most_unasked_ - size) {
        return "party " + std::to_string(peer) + " sent more than " +
               std::to_string(most_unasked_) + " bytes that no receive has requested";
      }
      from.unasked += size;
    }
    if (size == total) {
      message.data = AlignedBuffer(size);
      std::memcpy(message.data.get(), data, size);
      message.size = size;
    } else {
      auto it = from.arriving.find(tag);
      if (it == from.arriving.end()) {
        if (offset != 0) return "party " + std::to_string(peer) + " sent frames out of order";
        it = from.arriving.emplace(tag, Arriving()).first;
        it->second.message.size = total;
        it->second.first_ns = came;
      }
      Arriving& part = it->second;
      if (part.received != offset || part.message.size != total) {
        return "party " + std::to_string(peer) + " sent frames out of order";
      }
      if (part.room < offset + size) {
        const size_t room = waited ? total : std::min<size_t>(total, kRoomFor * (offset + size));
        std::shared_ptr<uint8_t> larger = AlignedBuffer(room);
        if (offset) std::memcpy(larger.get(), part.message.data.get(), offset);
        part.message.data = std::move(larger);
        part.room = room;
      }
      std::memcpy(part.message.data.get() + offset, data, size);
      part.received += size;
      if (part.received < total) return "";
      message = std::move(part.message);
      first = part.first_ns;
      from.arriving.erase(it);
    }
    if (came) timeline_->Unpacked(came);
    if (flags & kRunAhead) {
      message.credit = std::make_shared<Credit>(weak_from_this(), peer, message.size);
    }
    message.depth.with_dealing = depth.with_dealing + 1;
    message.depth.ahead = depth.ahead + (flags & kRunAhead ? 0 : 1);
    if (came) {
      timeline_->Message({first ? first : came, Timeline::Now(),
                          waited ? asked->second.asked_ns : 0, tag.step, total, tag.site,
                          tag.iteration, tag.slot, Timeline::kReceived, peer,
                          (flags & kRunAhead) != 0});
      if (waited) timeline_->Came(peer, tag.step, tag.site);
    }
    if (!waited) {
      from.arrived.emplace(tag, std::move(message));
      if (collecting_) changed_.notify_all();
      return "";
    }
    NoteDelivery(peer, tag, asked->second.index, message);
    done = std::move(asked->second.done);
    from.waiting.erase(asked);
  }
  done("", std::move(message));
  return "";
}

struct Session::Credit {
  Credit(std::weak_ptr<Session> s, int p, uint64_t b) : session(std::move(s)), peer(p), bytes(b) {}
  ~Credit() {
    if (auto s = session.lock()) s->LetGo(peer, bytes);
  }
  Credit(const Credit&) = delete;
  Credit& operator=(const Credit&) = delete;
  std::weak_ptr<Session> session;
  int peer;
  uint64_t bytes;
};

void Session::LetGo(int peer, uint64_t bytes) {
  std::shared_ptr<Session> direct;
  uint64_t total = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.empty()) return;
    Peer& to = peers_[peer];
    to.released += bytes;
    total = to.released;
    if (in_memory_[peer]) {
      direct = linked_[peer].lock();
    } else {
      const bool urgent = to.released - to.reported >= kUrgentBytes;
      if (!to.telling) {
        to.telling = true;
        to.outbox.push_back({Tag{0, 0, 0, 0}, kReleased, {}, nullptr, 0, 0, nullptr,
                             urgent && !shaped_ ? 0 : NowMicros() + (urgent ? 0 : kLazyMicros)});
        if (urgent) ReleaseGathered(to);
        if (urgent || to.outbox.size() == 1) WakeSender(peer);
      } else if (urgent) {
        for (Outgoing& o : to.outbox) {
          if (o.flags & kReleased && o.ready_at_us) {
            o.ready_at_us = shaped_ ? NowMicros() : 0;
            ReleaseGathered(to);
            WakeSender(peer);
          }
        }
      }
    }
  }
  if (direct) {
    // Reports may overtake each other here; the larger count holds.
    direct->Accept(party_, Tag{total, 0, 0, 0}, kReleased, {}, 0, 0, nullptr, 0);
  }
}

bool Session::GateIsOpen() const {
  for (const Peer& p : peers_) {
    if (p.ahead_sent - p.ahead_freed > kMaxAhead) return false;
  }
  return true;
}

int64_t Session::Gate(Passed passed) {
  Error error;
  int64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    error = aborted_;
    number = next_gate_++;
    if (error.empty() && !GateIsOpen()) {
      gates_.emplace(number, std::move(passed));
      for (int p = 0; p < 3; ++p) {
        if (ReleaseGathered(peers_[p])) WakeSender(p);
      }
      return number;
    }
  }
  passed(error);
  return number;
}

void Session::CancelGate(int64_t number) {
  Passed passed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = gates_.find(number);
    if (it == gates_.end()) return;
    passed = std::move(it->second);
    gates_.erase(it);
  }
  passed("another part of this graph call failed");
}

}  // namespace tfe_bench
