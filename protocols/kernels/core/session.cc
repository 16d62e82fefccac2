#include "protocols/kernels/core/session.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "protocols/kernels/core/memory.h"
#include "protocols/kernels/core/timeline.h"

namespace tfe_bench {
namespace {

// What precedes each piece of a payload on the wire.  Both ends are x86-64: little endian.
struct FrameHeader {
  uint64_t step, total, offset;
  uint32_t site, iteration, length, depth_cold, depth_ahead;
  uint16_t slot, flags;
};
static_assert(sizeof(FrameHeader) == 48, "the frame header is part of the wire format");

constexpr uint16_t kRunAhead = 1;  // the dealer's material: free when it ran ahead
constexpr uint16_t kStepDone = 2;  // carries no payload
constexpr uint16_t kLetGo = 4;     // no payload either: `step` counts run-ahead bytes let go of
constexpr uint16_t kReport = kStepDone | kLetGo;

// The report that a step is over is not urgent: it travels with the next message, or after this.
constexpr int64_t kLazyMicros = 5000;
// This much let go of is worth a report of its own.
constexpr uint64_t kUrgentBytes = uint64_t{4} << 20;

constexpr uint64_t kMaxMessage = uint64_t{1} << 34;

int64_t NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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
    // Too large to be kept: pages of 2 MiB cost a tenth of what clearing small ones does.
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

std::shared_ptr<uint8_t> AlignedBuffer(size_t size) {
  static auto* pool = new BufferPool;  // outlives every message
  return pool->Take(size);
}

// A message that nobody waits for yet gets room for this many times what has arrived of it, and not
// for what it announces.
constexpr size_t kRoomFor = 16;

std::string Describe(const Tag& t) {
  return "site " + std::to_string(t.site) + ", step " + std::to_string(t.step) + ", iteration " +
         std::to_string(t.iteration) + ", message " + std::to_string(t.slot);
}

}  // namespace

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

Error Session::SetFault(Fault fault) {
  if (!simulated_) return "faults can be seeded in simulated sessions only";
  fault_ = fault;
  return "";
}

Error Session::Replay(int64_t steps) {
  if (!simulated_) return "masks are replayed in simulated sessions only";
  replayed_steps_ = steps;
  return "";
}

Error Session::Alter(uint64_t hi, uint64_t lo, const uint64_t* words, size_t count) {
  if (!simulated_) return "masks are altered in simulated sessions only";
  altered_hi_ = hi;
  altered_lo_ = lo;
  alteration_.assign(words, words + count);
  return "";
}

Error Session::Stream(KeyRole role, int dealer, int64_t site, int64_t step, int64_t iteration,
                      int64_t tensor, uint64_t bytes, PrfStream* out) {
  if (dealer < 0 || dealer > 2) return "mask numbering: dealer out of range";
  const int key = role == kK2 ? dealer : role == kK1 ? (dealer + 1) % 3 : (dealer + 2) % 3;
  if (!has_key_[key]) {
    return "party " + std::to_string(party_) + " does not hold key " + std::to_string(key);
  }
  if (site < 0 || site >> kSiteBits) return "mask numbering: site out of range";
  if (step <= 0 || step >> kStepBits) return "mask numbering: step out of range";
  if (iteration < 0 || iteration >> kIterationBits) return "mask numbering: iteration out of range";
  if (tensor < 0 || tensor >> kTensorBits) return "mask numbering: tensor out of range";
  if (bytes / 16 >= kMaxBlocks) return "mask numbering: tensor too large for one mask";
  step -= replayed_steps_;
  if (fault_ == kReuseCounter) step = 1;
  out->key = &keys_[key];
  out->hi = static_cast<uint64_t>(site) << kStepBits | static_cast<uint64_t>(step);
  out->lo = static_cast<uint64_t>(iteration) << 44 | static_cast<uint64_t>(dealer) << 42 |
            static_cast<uint64_t>(role) << 40 | static_cast<uint64_t>(tensor) << 32;
  return "";
}

namespace {
constexpr char kOtherGraph[] =
    "the workers are at different points of the program: one of them traced a graph that the "
    "others did not";
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
  std::vector<Message> unread;  // let go of after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_steps_.erase(step)) return;
    timeline_->StepEnded(step);
    Depth deepest;
    for (const Depth& d : recv_depths_[step]) {
      deepest.cold = std::max(deepest.cold, d.cold);
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
      // Nobody can ask for these any more.
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
        if (peers_[p].outbox.size() == 1) WakeSender(p);
      }
    }
    changed_.notify_all();
  }
  for (const auto& peer : direct) {
    peer->Accept(party_, Tag{static_cast<uint64_t>(step), 0, 0, 0}, kStepDone, {}, 0, 0, nullptr, 0);
  }
}

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
    // The last line of defence against a mask used twice: one message has one tag, and every pad
    // in it carries the same site, step and iteration.
    if (!peers_[peer].seen_out.insert(tag).second) {
      const Error why = "a message would be sent twice under one mask (" + Describe(tag) + ")";
      return why;
    }
    const std::vector<Depth>& depths = recv_depths_[static_cast<int64_t>(tag.step)];
    for (size_t i = 0; i < depths.size(); ++i) {
      if (i / 8 < deps.size() && (deps[i / 8] >> (i % 8) & 1)) {
        depth.cold = std::max(depth.cold, depths[i].cold);
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
      peers_[peer].outbox.push_back({tag, flags, depth, data, size, 0, std::move(keep_alive),
                                     shaped_ ? NowMicros() : 0, queued});
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

void Session::Note(const Tag& tag, int index, Depth depth) {
  if (tag.site == 0) return;
  auto& depths = recv_depths_[static_cast<int64_t>(tag.step)];
  if (static_cast<int>(depths.size()) <= index) depths.resize(index + 1);
  depths[index] = depth;
}

namespace {
Error OtherSize(int peer, size_t size, size_t expected, const Tag& tag) {
  return "party " + std::to_string(peer) + " sent " + std::to_string(size) + " bytes where " +
         std::to_string(expected) + " were due (" + Describe(tag) + ")";
}
}  // namespace

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
        Note(tag, index, message.depth);
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
  // Before the lock, and so let go of after it: a message's credit wants the lock.
  Done done;
  Message message;
  std::map<int64_t, Passed> open;
  const int64_t came = timeline_->on() ? Timeline::Now() : 0;
  int64_t first = came;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Peer& from = peers_[peer];
    if (!aborted_.empty()) return aborted_;
    if (flags & kLetGo) {
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
    // No peer is further ahead: it begins a step only while this party has ended an earlier one.
    const bool near = tag.step <= static_cast<uint64_t>(last_ended_ + kMostStepsAhead);
    if (!near) return "party " + std::to_string(peer) + " is at a step that is far ahead";
    if (flags & kStepDone) {
      from.done_step = std::max(from.done_step, static_cast<int64_t>(tag.step));
      changed_.notify_all();
      return "";
    }
    counters_.payload_received[peer] += size;
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
               std::to_string(most_unasked_) + " bytes that nobody has asked for";
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
    message.depth.cold = depth.cold + 1;
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
      return "";
    }
    Note(tag, asked->second.index, message.depth);
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
    to.let_go += bytes;
    total = to.let_go;
    if (in_memory_[peer]) {
      direct = linked_[peer].lock();
    } else {
      const bool urgent = to.let_go - to.told >= kUrgentBytes;
      if (!to.telling) {
        to.telling = true;
        to.outbox.push_back({Tag{0, 0, 0, 0}, kLetGo, {}, nullptr, 0, 0, nullptr,
                             urgent && !shaped_ ? 0 : NowMicros() + (urgent ? 0 : kLazyMicros)});
        if (urgent || to.outbox.size() == 1) WakeSender(peer);
      } else if (urgent) {
        for (Outgoing& o : to.outbox) {
          if (o.flags & kLetGo && o.ready_at_us) {
            o.ready_at_us = shaped_ ? NowMicros() : 0;
            WakeSender(peer);
          }
        }
      }
    }
  }
  if (direct) {
    // Reports may overtake each other here; the larger count holds.
    direct->Accept(party_, Tag{total, 0, 0, 0}, kLetGo, {}, 0, 0, nullptr, 0);
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

void Session::SetWake(int peer, int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  wake_[peer] = fd;
}

namespace {
// How long a piece of a message keeps an emulated link from the other peer's messages.
constexpr int64_t kPieceMicros = 1500;
constexpr int64_t kLeastPiece = 4096, kMostPiece = 1 << 19;
}  // namespace

void Session::Shape(int peer, int64_t delay_us, int64_t bytes_per_second) {
  std::lock_guard<std::mutex> lock(mutex_);
  // What waits already is sent as it was meant to be: now.
  for (int p = 0; p < 3 && !shaped_; ++p) {
    for (Outgoing& o : peers_[p].outbox) {
      o.left = o.size;
      o.header = true;
      peers_[p].landed += sizeof(FrameHeader) + o.size - o.sent;
    }
    peers_[p].departed = peers_[p].outbox.size();
  }
  delay_us_[peer] = delay_us;
  bytes_per_second_ = bytes_per_second;
  link_free_us_ = static_cast<double>(NowMicros());
  if (!shaped_) link_ = std::thread([this] { RunLink(); });
  shaped_ = true;
}

// When the next message of a queue can leave; INT64_MAX: there is none.
int64_t Session::Earliest(const Peer& to) const {
  int64_t earliest = INT64_MAX;
  for (size_t i = to.departed; i < to.outbox.size(); ++i) {
    earliest = std::min(earliest, to.outbox[i].ready_at_us);
    if (!(to.outbox[i].flags & kReport)) break;  // a report travels with the next message
  }
  return earliest;
}

// Lets everything leave that left by now, and arrive that arrived by now.  Returns when the next
// of these happens, INT64_MAX for never.
int64_t Session::Advance(int64_t now) {
  const int64_t piece = std::min(
      kMostPiece, std::max(kLeastPiece, bytes_per_second_ / 1000 * kPieceMicros / 1000));
  int64_t next = INT64_MAX;
  for (;;) {
    int chosen = -1;
    double start = 0;
    for (int i = 0; i < 3; ++i) {
      const int p = (link_turn_ + i) % 3;
      const int64_t earliest = Earliest(peers_[p]);
      if (earliest == INT64_MAX) continue;
      const double at = std::max(link_free_us_, static_cast<double>(earliest));
      if (chosen < 0 || at < start) {
        chosen = p;
        start = at;
      }
    }
    if (chosen < 0) break;
    if (start > static_cast<double>(now)) {
      next = std::min(next, static_cast<int64_t>(start) + 1);
      break;
    }
    Peer& to = peers_[chosen];
    size_t bytes = 0;
    double end = start;
    while (to.departed < to.outbox.size()) {
      Outgoing& o = to.outbox[to.departed];
      if (!(o.flags & kReport) && static_cast<double>(o.ready_at_us) > start) break;
      if (!o.header) {
        // A header goes with some of its message.
        if (bytes && bytes + sizeof(FrameHeader) >= static_cast<size_t>(piece)) break;
        bytes += sizeof(FrameHeader);
      }
      o.header = true;
      const size_t room = bytes_per_second_ ? piece - std::min<size_t>(bytes, piece) : o.size;
      const size_t some = std::min(o.size - o.left, room);
      o.left += some;
      bytes += some;
      if (o.left < o.size) break;
      ++to.departed;
      if (bytes_per_second_ && bytes >= static_cast<size_t>(piece)) break;
    }
    if (bytes_per_second_) end += static_cast<double>(bytes) * 1e6 / bytes_per_second_;
    link_free_us_ = end;
    to.flights.push_back({bytes, static_cast<int64_t>(end) + delay_us_[chosen]});
    link_turn_ = (chosen + 1) % 3;
  }
  for (int p = 0; p < 3; ++p) {
    Peer& to = peers_[p];
    const size_t before = to.landed;
    while (!to.flights.empty() && to.flights.front().due_us <= now) {
      to.landed += to.flights.front().bytes;
      to.flights.pop_front();
    }
    if (to.landed != before) WakeSender(p);
    if (!to.flights.empty()) next = std::min(next, to.flights.front().due_us);
  }
  return next;
}

// Bytes that Pop would return at most, without the headers of further pieces.
int64_t Session::Due(const Peer& to) const {
  if (to.outbox.empty()) return 0;
  const Outgoing& first = to.outbox.front();
  const size_t least = (first.told ? 0 : sizeof(FrameHeader)) + (first.sent < first.size ? 1 : 0);
  return to.landed < least ? 0 : static_cast<int64_t>(to.landed + sizeof(FrameHeader));
}

void Session::RunLink() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!link_over_) {
    const int64_t now = NowMicros();
    const int64_t next = Advance(now);
    if (next == INT64_MAX) {
      link_changed_.wait(lock);
    } else {
      link_changed_.wait_for(lock, std::chrono::microseconds(std::max<int64_t>(1, next - now)));
    }
  }
}

void Session::WakeSender(int peer) {
  if (shaped_) link_changed_.notify_one();
  outgoing_[peer].notify_one();
  if (wake_[peer] >= 0) {
    const uint64_t one = 1;
    // A full counter means that the reader is awake anyway.
    [[maybe_unused]] const ssize_t written = write(wake_[peer], &one, sizeof(one));
  }
}

int64_t Session::WaitOutgoing(int peer, int64_t limit, int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto& outbox = peers_[peer].outbox;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (shaped_) {
    Advance(NowMicros());
    if (const int64_t due = Due(peers_[peer])) return std::min(due, limit);
    if (!aborted_.empty() && outbox.empty()) return -1;
    if (timeout_ms <= 0) return 0;
    if (outgoing_[peer].wait_until(lock, deadline) == std::cv_status::timeout) return 0;
  }
  for (;;) {
    int64_t bytes = 0, next = 0;
    bool due = false;
    const int64_t now = NowMicros();
    for (const Outgoing& o : outbox) {
      if (o.ready_at_us > now) {
        if (!next) next = o.ready_at_us;
        if (!(o.flags & kReport)) break;  // delayed messages keep their order
      } else {
        due = true;
      }
      bytes += sizeof(FrameHeader) + static_cast<int64_t>(o.size - o.sent);
      if (bytes >= limit) break;
    }
    if (due) return std::min(bytes, limit);
    if (!aborted_.empty() && outbox.empty()) return -1;
    if (timeout_ms <= 0) return 0;  // (a wait that is over at once is a system call still)
    auto until = deadline;
    if (next) {
      until = std::min(deadline,
                       std::chrono::steady_clock::now() + std::chrono::microseconds(next - now));
    }
    if (outgoing_[peer].wait_until(lock, until) == std::cv_status::timeout && until == deadline) {
      return 0;
    }
  }
}

int64_t Session::NextDue(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto& outbox = peers_[peer].outbox;
  if (outbox.empty()) return -1;
  const int64_t now = NowMicros();
  if (shaped_) {
    const int64_t next = Advance(now);
    return Due(peers_[peer]) || next <= now ? 0 : std::min<int64_t>(next - now, 1000000);
  }
  int64_t due = outbox.front().ready_at_us;
  for (const Outgoing& o : outbox) {
    due = std::min(due, o.ready_at_us);
    if (!(o.flags & kReport)) break;
  }
  return due > now ? due - now : 0;
}

int64_t Session::NextBlob(int peer, uint8_t* out, int64_t small, int64_t limit, int timeout_ms) {
  const int64_t size = WaitOutgoing(peer, limit, timeout_ms);
  if (size < 0) return kOver;
  return size <= small ? (size ? Pop(peer, out, size) : 0) : -size;
}

int64_t Session::Pop(int peer, uint8_t* out, int64_t limit) {
  const int64_t began = timeline_->on() ? Timeline::Now() : 0;
  std::vector<std::shared_ptr<void>> finished;  // released after the lock
  int64_t used = 0;
  bool copied = false;
  do {
    const uint8_t* source = nullptr;
    size_t piece = 0;
    std::shared_ptr<void> hold;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& outbox = peers_[peer].outbox;
      if (outbox.empty()) break;
      Outgoing& o = outbox.front();
      if (!shaped_ && !(o.flags & kReport) && o.ready_at_us && o.ready_at_us > NowMicros()) break;
      const int64_t room = limit - used - static_cast<int64_t>(sizeof(FrameHeader));
      const size_t left = o.size - o.sent;
      if (room < 0 || (room == 0 && left)) break;
      piece = std::min(left, static_cast<size_t>(room));
      if (shaped_) {
        const size_t header = o.told ? 0 : sizeof(FrameHeader);
        if (peers_[peer].landed < header + (left ? 1 : 0)) break;
        piece = std::min(piece, peers_[peer].landed - header);
        peers_[peer].landed -= header + piece;
        o.told = true;
      }
      if (o.flags & kLetGo) {  // as much as there is to tell by now
        o.tag.step = peers_[peer].told = peers_[peer].let_go;
        peers_[peer].telling = false;
      }
      FrameHeader h{o.tag.step,
                    o.size,
                    o.sent,
                    o.tag.site,
                    o.tag.iteration,
                    static_cast<uint32_t>(piece),
                    o.depth.cold,
                    o.depth.ahead,
                    static_cast<uint16_t>(o.tag.slot),
                    o.flags};
      std::memcpy(out + used, &h, sizeof(h));
      used += sizeof(h);
      source = o.data + o.sent;
      hold = o.keep_alive;
      o.sent += piece;
      if (o.tag.site != 0) counters_.frame_sent[peer] += sizeof(h) + piece;
      if (began && !o.first_ns) o.first_ns = Timeline::Now();
      if (o.sent == o.size) {
        if (began && o.queued_ns) {
          timeline_->Message({o.first_ns, Timeline::Now(), o.queued_ns, o.tag.step, o.size,
                              o.tag.site, o.tag.iteration, o.tag.slot, Timeline::kSent, peer,
                              (o.flags & kRunAhead) != 0});
        }
        finished.push_back(std::move(o.keep_alive));
        outbox.pop_front();
        if (shaped_) --peers_[peer].departed;
        if (outbox.empty()) changed_.notify_all();
      }
    }
    if (piece) std::memcpy(out + used, source, piece);
    used += static_cast<int64_t>(piece);
    copied = true;
  } while (copied && used < limit);
  if (began) timeline_->Packed(began);
  return used;
}

Error Session::Push(int peer, const uint8_t* blob, int64_t size) {
  int64_t at = 0;
  while (at < size) {
    FrameHeader h;
    if (size - at < static_cast<int64_t>(sizeof(h))) return "a truncated frame arrived";
    std::memcpy(&h, blob + at, sizeof(h));
    at += sizeof(h);
    if (static_cast<int64_t>(h.length) > size - at) return "a truncated frame arrived";
    Error error = Accept(peer, Tag{h.step, h.site, h.iteration, h.slot}, h.flags,
                         Depth{h.depth_cold, h.depth_ahead}, h.total, h.offset, blob + at, h.length);
    if (!error.empty()) return error;
    at += h.length;
  }
  return "";
}

void Session::Abort(const Error& why) {
  // What a peer's lists held is let go of after the lock, which the credits of messages want.
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

bool Session::Drain(int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return peers_[0].outbox.empty() && peers_[1].outbox.empty() && peers_[2].outbox.empty();
  });
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

void Session::Record(const PrfStream& stream, PadUse use, const void* words, size_t bytes) {
  if (!recording_) return;
  // FNV-1a: the log is for tests, which only ask whether two words differ.
  uint64_t digest = 1469598103934665603ull;
  const uint8_t* p = static_cast<const uint8_t*>(words);
  for (size_t i = 0; i < bytes; ++i) digest = (digest ^ p[i]) * 1099511628211ull;
  int key = 0;
  for (int j = 0; j < 3; ++j) {
    if (stream.key == &keys_[j]) key = j;
  }
  std::lock_guard<std::mutex> lock(record_mutex_);
  records_.push_back({stream.hi, stream.lo, bytes, digest, key, party_, use, 0});
}

std::vector<PadRecord> Session::Records() {
  std::lock_guard<std::mutex> lock(record_mutex_);
  return records_;
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

void FillMask(const Session& session, const PrfStream& stream, uint64_t first_block,
              uint64_t blocks, uint8_t* out) {
  if (session.fault() == kDropMask) {
    std::memset(out, 0, blocks * 16);
    return;
  }
  AesCtr(*stream.key, stream.hi, stream.lo + first_block, blocks, out);
  if (session.fault() == kReuseBlock) {
    for (uint64_t i = 1; i < blocks; i += 2) std::memcpy(out + 16 * i, out + 16 * (i - 1), 16);
  }
  if (const std::vector<uint64_t>* words = session.Altered(stream)) {
    const uint64_t end = std::min<uint64_t>(2 * (first_block + blocks), words->size());
    for (uint64_t i = 2 * first_block; i < end; ++i) {
      uint8_t* at = out + 8 * (i - 2 * first_block);
      uint64_t word;
      std::memcpy(&word, at, 8);
      word ^= (*words)[i];
      std::memcpy(at, &word, 8);
    }
  }
}

}  // namespace tfe_bench
