// One party's side of one session: its pairwise keys, its numbered masks, its mailbox and its
// counters.  Free of TensorFlow; the kernels and the Python transport are its two users.
//
// A mask is AES-CTR output under a pairwise key.  Its counter block is made of fixed bit fields
// (overflow is an error, never a wrap):
//
//   hi = site:24 | step:40
//   lo = iteration:20 | dealer:2 | role:2 | tensor:8 | block:32
//
// The step is fresh for every graph call of a session and keys are fresh for every session, so no
// two masks share a counter under one key.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_SESSION_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_SESSION_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "protocols/kernels/core/aes_ctr.h"

namespace tfe_bench {

class Timeline;

// Empty text means success.
using Error = std::string;

enum Role { kDealer = 0, kE1 = 1, kE2 = 2 };

// Which pairwise key, by the two roles that hold it: K1 = (D, E1), K2 = (D, E2), K3 = (E1, E2).
enum KeyRole { kK1 = 1, kK2 = 2, kK3 = 3 };

constexpr int kSiteBits = 24, kStepBits = 40, kIterationBits = 20, kTensorBits = 8;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 32;

// Where a stream of mask words starts, and the number of its key.
struct PrfStream {
  const AesKey* key;
  uint64_t hi, lo;
  int number = 0;
};

// The keys and the step of masks under which material is sent ahead of time: one step of a later
// session draws them again.  Only this process holds them; they are wiped with the last owner.
// They are derived from the keys of the session that makes the material, k' = AES_k(step) at a
// counter that no mask has, so that they disclose no other mask of that session.
struct KeptMasks {
  ~KeptMasks();
  int party = -1;
  int64_t step = 0;
  AesKey keys[3];
  std::atomic<bool> used{false};
};

struct Tag {
  uint64_t step;
  uint32_t site, iteration, slot;
  bool operator<(const Tag& o) const {
    if (step != o.step) return step < o.step;
    if (site != o.site) return site < o.site;
    if (iteration != o.iteration) return iteration < o.iteration;
    return slot < o.slot;
  }
};

// Length in messages of the longest chain that ends here: counting all messages, offline and
// online (with_dealing), and with the dealer's run-ahead messages already there (ahead).
struct Depth {
  uint32_t with_dealing = 0, ahead = 0;
};

// Received payload; the buffer is 64-byte aligned.
struct Message {
  std::shared_ptr<uint8_t> data;
  size_t size = 0;
  Depth depth;
  std::shared_ptr<void> credit;  // of run-ahead messages: returned to the sender on release
};

// One line of the debug log: a pad, and a digest of the words that left this party under it
// (kMasked) or of the pad itself where it became a share (kShare).
enum PadUse : int32_t { kShare = 0, kMasked = 1 };
struct PadRecord {
  uint64_t hi, lo, bytes, digest;
  int32_t key, party, use, reserved;
};

// Faults that tests seed to prove that the view tests catch them.  Only a simulated session, whose
// three parties share one process and so have no secrets from each other, accepts one.
enum Fault { kNoFault = 0, kDropMask = 1, kReuseCounter = 2, kReuseBlock = 3, kBiasedPermutation = 4 };

class Session : public std::enable_shared_from_this<Session> {
 public:
  // keys[j] is k_j, held by parties j and j-1; the one this party does not hold is ignored.
  Session(int party, const uint8_t keys[3][16], bool simulated);
  ~Session();  // wipes the keys
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int party() const { return party_; }
  bool simulated() const { return simulated_; }
  Fault fault() const { return fault_; }
  Error SetFault(Fault fault);
  // Tests of joint views (simulated sessions only, between graph calls): masks are numbered as if
  // this many steps had not run, so that a program runs again under the same masks ...
  Error Replay(int64_t steps);
  // ... except for one stream, to which these words are added bit by bit (XOR); no words: to none.
  Error Alter(uint64_t hi, uint64_t lo, const uint64_t* words, size_t count);
  // The words for a stream; nullptr: it is as it should be.
  const std::vector<uint64_t>* Altered(const PrfStream& stream) const {
    return alteration_.empty() || stream.hi != altered_hi_ || stream.lo != altered_lo_
               ? nullptr
               : &alteration_;
  }

  Role RoleOf(int dealer) const { return static_cast<Role>((party_ - dealer + 3) % 3); }

  // Finds the stream of one mask; fails when this party does not hold the key or a field overflows.
  Error Stream(KeyRole role, int dealer, int64_t site, int64_t step, int64_t iteration,
               int64_t tensor, uint64_t bytes, PrfStream* out);

  // ---- steps.  Each graph call is one; none is ever used twice.
  // A step is one graph call or one exchange of bookkeeping between the workers; all three must be
  // at the same kind, or one has traced another graph than the others.
  enum StepKind { kGraph, kControl };
  // Waits while a peer is run_ahead steps behind, at most kMostStepsAhead.
  static constexpr int64_t kMostStepsAhead = 64;
  Error BeginStep(int64_t step, StepKind kind, int64_t run_ahead);
  void EndStep(int64_t step);
  bool StepIsOpen(int64_t step);

  // ---- messages
  // Queues a payload for peer.  keep_alive owns data until it has been packed.  deps is the bit
  // mask, over the indices of the step's receives, that this message depends on.
  Error Send(int peer, const Tag& tag, bool run_ahead, const std::string& deps, const uint8_t* data,
             size_t size, std::shared_ptr<void> keep_alive);
  // Calls done exactly once, on any thread.
  using Done = std::function<void(const Error&, Message)>;
  void Recv(int peer, const Tag& tag, int index, size_t expected, Done done);
  // Completes a waiting receive with an error (its graph call has failed elsewhere).
  void CancelRecv(int peer, const Tag& tag);
  // Back-pressure on the dealer.  Run-ahead material counts against its sender until the receiver
  // has let go of it; the dealer passes this gate before each protocol invocation, in their order.
  // An evaluator can always finish the earliest one that it has not, so the gate always opens again.
  static constexpr uint64_t kMaxAhead = uint64_t{32} << 20;  // bytes per peer
  using Passed = std::function<void(const Error&)>;
  // Calls passed exactly once, on any thread.  Returns a number for CancelGate.
  int64_t Gate(Passed passed);
  void CancelGate(int64_t number);

  // ---- material ahead of time
  // Draws the masks of a running step, in which messages are taken aside, from derived keys, and
  // returns these for one more step; nullptr: the step does not run, or has drawn from others.
  std::shared_ptr<KeptMasks> KeepMasks(int64_t step);
  // Draws the masks of a running step from a source.  A source serves one step, ever.
  Error UseMasks(int64_t step, std::shared_ptr<KeptMasks> source);
  // Takes aside a message of a step that no receive has requested; peer -1: none came in time.
  struct Collected {
    int peer = -1;
    bool over = false;  // the session has ended
    Tag tag{};
    Message message;
  };
  Collected Collect(int64_t step, int timeout_ms);
  // Delivers a message that was taken aside before, as if the peer had sent it now.
  Error Feed(int peer, const Tag& tag, const uint8_t* data, size_t size);
  // Waits until at most these bytes of what was fed for a peer are in memory; false: not in time.
  bool WaitFed(int peer, uint64_t most, int timeout_ms);

  // ---- transport side
  // Bytes that the next Pop would return at most; waits up to timeout_ms for some.  0: timed out,
  // -1: the session is over and everything has been popped.
  int64_t WaitOutgoing(int peer, int64_t limit, int timeout_ms);
  int64_t Pop(int peer, uint8_t* out, int64_t limit);
  // WaitOutgoing and Pop in one: pops what fits `small` bytes and returns how many were written;
  // for more, pops nothing and returns minus the size to call Pop with.  0: timed out; the session
  // is over: kOver.
  static constexpr int64_t kOver = INT64_MIN;
  // Microseconds until something falls due for a peer; -1: nothing waits.
  int64_t NextDue(int peer);
  int64_t NextBlob(int peer, uint8_t* out, int64_t small, int64_t limit, int timeout_ms);
  // An eventfd to write to whenever something may be due for a peer; -1: none.
  void SetWake(int peer, int fd);
  // Takes a blob as popped by the peer.  An error ends the session.
  Error Push(int peer, const uint8_t* blob, int64_t size);
  // Bytes of a peer's messages that no receive has requested yet; more end the session.  A quarter of the
  // host's memory if this is not called.
  void LimitUnasked(uint64_t bytes) { most_unasked_ = bytes; }
  // Joins two sessions of one process; Send then delivers directly.
  void LinkInMemory(int peer, const std::shared_ptr<Session>& session) {
    linked_[peer] = session;
    in_memory_[peer] = true;
  }

  // Ends the session: every waiting and later receive fails with this text.
  void Abort(const Error& why);
  Error aborted();
  // Waits until all queued frames were popped.
  bool Drain(int timeout_ms);

  // ---- measured at the channel
  struct Counters {
    // Of protocol messages; frames, with their headers, count as they leave.
    uint64_t payload_sent[3], frame_sent[3], messages_sent[3];
    uint64_t payload_received[3];  // by receives
  };
  Counters counters();
  void ResetCounters();
  std::vector<Depth> StepDepths();  // one entry per finished step, since the last reset

  // Times of waits and messages; off until an observer is set.
  Timeline& timeline() { return *timeline_; }

  // ---- debug log
  void SetRecording(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  void Record(const PrfStream& stream, PadUse use, const void* words, size_t bytes);
  std::vector<PadRecord> Records();

  // Emulates a network on what is sent from now on: microseconds of one-way delay to a peer, and
  // one rate in bytes per second for what leaves for both peers together (0: no limit).  A piece of
  // a message starts when the host's link is free, and is due a delay after its last byte has left;
  // the peers' queues take turns, so that a large message to one does not hold up the other.
  void Shape(int peer, int64_t delay_us, int64_t bytes_per_second);

 private:
  struct Outgoing {
    Tag tag;
    uint16_t flags;
    Depth depth;
    const uint8_t* data;
    size_t size, sent;
    std::shared_ptr<void> keep_alive;
    int64_t ready_at_us;
    int64_t queued_ns = 0, first_ns = 0;  // on the timeline; 0 without an observer
    size_t left = 0;      // of a shaped link: bytes that have left or will have left by their time
    bool header = false;  // ... and the header among them
    bool counted = false; // the first piece, with the header that counts, was popped
  };
  // Of a shaped link: bytes, headers included, that arrive at a time.
  struct Flight {
    size_t bytes;
    int64_t due_us;
  };
  struct Waiting {
    Done done;
    size_t expected;
    int index;
    int64_t asked_ns = 0;
  };
  struct Arriving {
    Message message;              // its size is what is announced
    size_t received = 0, room = 0;
    int64_t first_ns = 0;
  };
  struct Peer {
    std::deque<Outgoing> outbox;
    std::map<Tag, Arriving> arriving;  // not complete yet
    std::map<Tag, Message> arrived;    // complete, not asked for yet
    std::map<Tag, Waiting> waiting;    // asked for, not complete yet
    std::set<Tag> seen_in, seen_out;   // of steps that are not over: a tag comes once
    int64_t done_step = 0;             // highest step this peer reported as finished
    uint64_t unasked = 0;              // bytes of what has come before anybody asked for it
    uint64_t ahead_sent = 0;           // run-ahead bytes sent to this peer ...
    uint64_t ahead_freed = 0;          // ... and of these, those that it reported as released
    uint64_t released = 0;             // run-ahead bytes of this peer released here ...
    uint64_t reported = 0;             // ... and as last reported
    bool telling = false;              // a report is queued
    uint64_t gathered = 0;             // bytes of material that wait for more ...
    int64_t gather_until_us = 0;       // ... until this time; 0: none waits
    std::deque<Flight> flights;        // of a shaped link: under way, in order
    size_t landed = 0;                 // ... and bytes that are due but not popped yet
    size_t departed = 0;               // messages of the outbox that have left entirely
  };

  Error Accept(int peer, const Tag& tag, uint16_t flags, Depth depth, uint64_t total,
               uint64_t offset, const uint8_t* data, size_t size);
  void Queue(Peer& to, Outgoing message);
  bool GatherMaterial(Peer& to);
  bool ReleaseGathered(Peer& to);
  void NoteDelivery(int peer, const Tag& tag, int index, const Message& message);
  struct Credit;
  struct FedCredit;
  std::shared_ptr<const KeptMasks> SourceOf(int64_t step);
  void LetGo(int peer, uint64_t bytes);
  bool GateIsOpen() const;
  void WakeSender(int peer);
  int64_t Earliest(const Peer& to) const;
  int64_t Advance(int64_t now);
  int64_t Due(const Peer& to) const;
  void RunLink();

  const int party_;
  const bool simulated_;
  uint64_t most_unasked_;
  Fault fault_ = kNoFault;
  int64_t replayed_steps_ = 0;
  uint64_t altered_hi_ = 0, altered_lo_ = 0;
  std::vector<uint64_t> alteration_;
  AesKey keys_[3];
  bool has_key_[3];
  std::weak_ptr<Session> linked_[3];
  bool in_memory_[3] = {false, false, false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable outgoing_[3];  // one per sender: a message wakes one thread
  // The emulated network.
  bool shaped_ = false, link_over_ = false;
  int64_t delay_us_[3] = {0, 0, 0}, bytes_per_second_ = 0;
  double link_free_us_ = 0;  // when the link will have sent what has been given to it
  int link_turn_ = 0;        // the next peer to send
  std::condition_variable link_changed_;
  std::thread link_;  // wakes senders on time; a timer of the event loop is a millisecond late
  int wake_[3] = {-1, -1, -1};
  Peer peers_[3];
  int64_t last_step_ = 0;            // high-water mark
  int64_t last_ended_ = 0;
  std::map<int64_t, StepKind> open_steps_;
  std::map<int64_t, std::vector<Depth>> recv_depths_;  // by step, by receive index
  std::vector<Depth> step_depths_;
  std::map<int64_t, Passed> gates_;  // not open yet
  int64_t next_gate_ = 1;
  std::atomic<bool> has_sources_{false};
  std::map<int64_t, std::shared_ptr<KeptMasks>> sources_;  // by step, until the session ends
  bool collecting_ = false;
  uint64_t fed_[3] = {0, 0, 0};  // bytes that were fed and are in memory, by peer
  Error aborted_;
  Counters counters_{};
  const std::unique_ptr<Timeline> timeline_;

  std::atomic<bool> recording_{false};
  std::mutex record_mutex_;
  std::vector<PadRecord> records_;
};

// Sessions are named by numbers, so that graphs carry no pointer.
int64_t RegisterSession(std::shared_ptr<Session> session);
std::shared_ptr<Session> FindSession(int64_t handle);
void DropSession(int64_t handle);

// Sources by number; a source is taken once.
int64_t RegisterSource(std::shared_ptr<KeptMasks> source);
std::shared_ptr<KeptMasks> TakeSource(int64_t handle);

// Fills out with the stream's words from block `first`; honors a seeded fault or alteration.
void FillMask(const Session& session, const PrfStream& stream, uint64_t first_block,
              uint64_t blocks, uint8_t* out);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_SESSION_H_
