// The transport's side of a session: blobs of frames out and in.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "protocols/kernels/core/frame.h"
#include "protocols/kernels/core/session.h"
#include "protocols/kernels/core/timeline.h"

namespace tfe_bench {

void Session::SetWake(int peer, int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  wake_[peer] = fd;
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
    if (timeout_ms <= 0) return 0;  // (even a wait of zero is a system call)
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
        const size_t header = o.counted ? 0 : sizeof(FrameHeader);
        if (peers_[peer].landed < header + (left ? 1 : 0)) break;
        piece = std::min(piece, peers_[peer].landed - header);
        peers_[peer].landed -= header + piece;
        o.counted = true;
      }
      if (o.flags & kReleased) {  // the current count
        o.tag.step = peers_[peer].reported = peers_[peer].released;
        peers_[peer].telling = false;
      }
      FrameHeader h{o.tag.step,
                    o.size,
                    o.sent,
                    o.tag.site,
                    o.tag.iteration,
                    static_cast<uint32_t>(piece),
                    o.depth.with_dealing,
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
                         Depth{h.depth_with_dealing, h.depth_ahead}, h.total, h.offset, blob + at, h.length);
    if (!error.empty()) return error;
    at += h.length;
  }
  return "";
}

bool Session::Drain(int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return peers_[0].outbox.empty() && peers_[1].outbox.empty() && peers_[2].outbox.empty();
  });
}

}  // namespace tfe_bench
