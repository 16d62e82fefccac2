// An emulated network: when queued messages leave over one link, and when they arrive.
#include <algorithm>

#include "protocols/kernels/core/frame.h"
#include "protocols/kernels/core/session.h"

namespace tfe_bench {
namespace {
// How long a piece of a message keeps an emulated link from the other peer's messages.
constexpr int64_t kPieceMicros = 1500;
constexpr int64_t kLeastPiece = 4096, kMostPiece = 1 << 19;
}  // namespace

void Session::Shape(int peer, int64_t delay_us, int64_t bytes_per_second) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Queued messages are sent at their intended time: now.
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

// When the next message of a queue can leave; INT64_MAX: no message.
int64_t Session::Earliest(const Peer& to) const {
  int64_t earliest = INT64_MAX;
  for (size_t i = to.departed; i < to.outbox.size(); ++i) {
    earliest = std::min(earliest, to.outbox[i].ready_at_us);
    if (!(to.outbox[i].flags & kReport)) break;  // a report travels with the next message
  }
  return earliest;
}

// Processes all departures and arrivals up to now.  Returns the time of the next one, INT64_MAX
// for never.
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
        // A header travels with part of its message.
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
  const size_t least = (first.counted ? 0 : sizeof(FrameHeader)) + (first.sent < first.size ? 1 : 0);
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

}  // namespace tfe_bench
