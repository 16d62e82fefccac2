// Sessions without TensorFlow: numbering, tags, frames, depth.
#include "protocols/kernels/core/session.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/check.h"

using namespace tfe_bench;

namespace {

const uint8_t kKeys[3][16] = {{1}, {2}, {3}};

std::shared_ptr<Session> Make(int party) {
  return std::make_shared<Session>(party, kKeys, false);
}

// Carries everything that is due from one session to the other.
Error Carry(Session* from, Session* to, int64_t limit = 1 << 20) {
  std::vector<uint8_t> blob(limit);
  int64_t size;
  while ((size = from->WaitOutgoing(to->party(), limit, 0)) > 0) {
    const int64_t used = from->Pop(to->party(), blob.data(), size);
    const Error error = to->Push(from->party(), blob.data(), used);
    if (!error.empty()) return error;
  }
  return "";
}

Error SendText(Session* s, int peer, const Tag& tag, const std::string& text) {
  auto keep = std::make_shared<std::string>(text);
  return s->Send(peer, tag, false, "", reinterpret_cast<const uint8_t*>(keep->data()),
                 keep->size(), keep);
}

}  // namespace

TEST(a_large_message_arrives_whole_through_small_blobs) {
  auto a = Make(0), b = Make(1);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(b->BeginStep(1, Session::kGraph, 4), "");
  std::string text(100000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  CHECK_EQ(SendText(a.get(), 1, {1, 5, 0, 0}, text), "");
  std::string got;
  b->Recv(0, {1, 5, 0, 0}, 0, text.size(), [&](const Error& e, Message m) {
    CHECK_EQ(e, "");
    got.assign(reinterpret_cast<char*>(m.data.get()), m.size);
    CHECK_EQ(m.depth.with_dealing, 1u);
  });
  CHECK_EQ(Carry(a.get(), b.get(), 1000), "");
  CHECK(got == text);
  CHECK_EQ(a->counters().payload_sent[1], text.size());
}

TEST(received_bytes_count_where_a_receive_gets_them) {
  auto a = Make(0), b = Make(1), late = Make(0);
  for (Session* s : {a.get(), b.get(), late.get()}) CHECK_EQ(s->BeginStep(1, Session::kGraph, 4), "");
  int got = 0;
  const auto count = [&](const Error& e, Message) { got += e.empty(); };
  CHECK_EQ(SendText(a.get(), 1, {1, 5, 0, 0}, "early"), "");
  CHECK_EQ(SendText(a.get(), 1, {1, 6, 0, 0}, "never asked for"), "");
  CHECK_EQ(Carry(a.get(), b.get(), 1000), "");
  CHECK_EQ(b->counters().payload_received[0], 0u);
  b->Recv(0, {1, 5, 0, 0}, 0, 5, count);
  CHECK_EQ(b->counters().payload_received[0], 5u);
  b->Recv(0, {1, 7, 0, 0}, 1, 4, count);
  CHECK_EQ(SendText(a.get(), 1, {1, 7, 0, 0}, "late"), "");
  CHECK_EQ(Carry(a.get(), b.get(), 1000), "");
  CHECK_EQ(b->counters().payload_received[0], 9u);
  CHECK_EQ(got, 2);
  a->EndStep(1);
  b->EndStep(1);
  // A message of the step that has just ended, and the report that a step is over.
  CHECK_EQ(SendText(late.get(), 1, {1, 8, 0, 0}, "of the ended step"), "");
  CHECK_EQ(Carry(late.get(), b.get(), 1000), "");
  CHECK_EQ(Carry(a.get(), b.get(), 1000), "");
  b->Recv(0, {1, 8, 0, 0}, 0, 17, count);  // refused: the step is not running
  CHECK_EQ(b->counters().payload_received[0], 9u);
  CHECK_EQ(got, 2);
}

TEST(a_tag_is_sent_once) {
  auto a = Make(0);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(SendText(a.get(), 1, {1, 5, 0, 0}, "x"), "");
  CHECK(!SendText(a.get(), 1, {1, 5, 0, 0}, "y").empty());
  CHECK_EQ(SendText(a.get(), 1, {1, 5, 1, 0}, "y"), "");
}

TEST(steps_only_rise) {
  auto a = Make(0);
  CHECK_EQ(a->BeginStep(3, Session::kGraph, 4), "");
  a->EndStep(3);
  CHECK(!a->BeginStep(3, Session::kGraph, 4).empty());
  CHECK(!a->BeginStep(2, Session::kGraph, 4).empty());
  CHECK(!SendText(a.get(), 1, {3, 1, 0, 0}, "late").empty());
}

TEST(mask_fields_do_not_overflow) {
  auto a = Make(0);
  PrfStream s;
  CHECK_EQ(a->Stream(kK1, 0, 1, 1, 0, 0, 16, &s), "");
  CHECK(!a->Stream(kK1, 0, int64_t{1} << 24, 1, 0, 0, 16, &s).empty());
  CHECK(!a->Stream(kK1, 0, 1, int64_t{1} << 40, 0, 0, 16, &s).empty());
  CHECK(!a->Stream(kK1, 0, 1, 1, int64_t{1} << 20, 0, 16, &s).empty());
  CHECK(!a->Stream(kK1, 0, 1, 1, 0, 256, 16, &s).empty());
  CHECK(!a->Stream(kK1, 0, 1, 1, 0, 0, uint64_t{1} << 36, &s).empty());
  CHECK(!a->Stream(kK1, 0, 1, 0, 0, 0, 16, &s).empty());
  CHECK(!a->Stream(kK3, 0, 1, 1, 0, 0, 16, &s).empty());  // the dealer does not hold K3
}

TEST(different_numbers_are_different_counters) {
  auto a = Make(0);
  std::vector<PrfStream> all;
  for (int dealer : {0, 1}) {
    for (int64_t site : {1, 2}) {
      for (int64_t step : {1, 2}) {
        for (int64_t iteration : {0, 1}) {
          for (int64_t tensor : {0, 255}) {
            PrfStream s;
            // the same k_1 is K1 for dealer 0 and K2 for dealer 1
            CHECK_EQ(a->Stream(dealer == 0 ? kK1 : kK2, dealer, site, step, iteration, tensor, 16, &s),
                     "");
            all.push_back(s);
          }
        }
      }
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK_EQ(all[i].lo & (kMaxBlocks - 1), 0u);
    CHECK(all[i].key == all[0].key);
    for (size_t j = 0; j < i; ++j) CHECK(all[i].hi != all[j].hi || all[i].lo != all[j].lo);
  }
}

// Also in the middle of a message; a shaped link finishes what has begun to leave.
TEST(what_is_waited_for_overtakes_what_is_made_ahead) {
  for (bool shaped : {false, true}) {
    auto a = Make(0), b = Make(1);
    CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
    CHECK_EQ(b->BeginStep(1, Session::kGraph, 4), "");
    if (shaped) a->Shape(1, 0, 1 << 20);
    std::vector<uint8_t> blob(1 << 12);
    const auto carry = [&] {
      const int64_t size = a->WaitOutgoing(1, static_cast<int64_t>(blob.size()), 1000);
      return size > 0 && b->Push(0, blob.data(), a->Pop(1, blob.data(), size)).empty();
    };
    std::vector<uint32_t> arrived;
    const std::string large(100000, 'x');
    for (uint32_t site = 1; site <= 5; ++site) {
      const size_t size = large.size() + site;
      b->Recv(0, {1, site, 0, 0}, site, size, [&, site](const Error& e, Message m) {
        CHECK_EQ(e, "");
        CHECK(std::string(reinterpret_cast<char*>(m.data.get()), m.size) ==
              std::string(large.size() + site, static_cast<char>('a' + site)));
        arrived.push_back(site);
      });
    }
    for (uint32_t site = 1; site <= 5; ++site) {
      const bool ahead = site <= 3;
      auto text = std::make_shared<std::string>(large.size() + site, static_cast<char>('a' + site));
      CHECK_EQ(a->Send(1, {1, site, 0, 0}, ahead, "",
                       reinterpret_cast<const uint8_t*>(text->data()), text->size(), text), "");
      if (site == 3) CHECK(carry());
    }
    while (arrived.size() < 5) CHECK(carry());
    CHECK(arrived == (shaped ? std::vector<uint32_t>{1, 4, 5, 2, 3}
                             : std::vector<uint32_t>{4, 5, 1, 2, 3}));
  }
}

namespace {

Error Deal(Session* s, uint32_t site, size_t size) {
  auto text = std::make_shared<std::string>(size, static_cast<char>('a' + site % 26));
  return s->Send(1, {1, site, 0, 0}, true, "", reinterpret_cast<const uint8_t*>(text->data()),
                 size, text);
}

// The peer holds more material than it reports at once.
void DealAhead(Session* a, Session* peer) {
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(peer->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(Deal(a, 1, 100), "");
  CHECK(a->WaitOutgoing(1, 1 << 20, 0) > 0);  // the peer may wait for it
  CHECK_EQ(Deal(a, 2, size_t{5} << 20), "");
  CHECK_EQ(Carry(a, peer), "");
}

}  // namespace

TEST(material_waits_for_more_while_the_peer_has_some) {
  bool waits = false;
  for (int attempt = 0; attempt < 1000 && !waits; ++attempt) {  // (a millisecond may pass)
    auto a = Make(0), b = Make(1);
    DealAhead(a.get(), b.get());
    CHECK_EQ(Deal(a.get(), 3, 100), "");
    const int64_t due = a->NextDue(1);
    waits = a->WaitOutgoing(1, 1 << 20, 0) == 0;
    CHECK(due >= 0 && due <= 1000);
    CHECK(a->WaitOutgoing(1, 1 << 20, 10000) > 0);
  }
  CHECK(waits);
}

TEST(material_that_waits_for_more_leaves_with_enough_or_at_the_end) {
  for (int why = 0; why < 4; ++why) {
    auto a = Make(0), b = Make(1);
    DealAhead(a.get(), b.get());
    CHECK_EQ(Deal(a.get(), 3, 100), "");
    size_t due = 100;
    if (why == 0) {
      due += size_t{1} << 19;
      CHECK_EQ(Deal(a.get(), 4, size_t{1} << 19), "");
    } else if (why == 1) {  // bookkeeping keeps its place behind it
      due += 3;
      CHECK_EQ(a->BeginStep(2, Session::kControl, 4), "");
      CHECK_EQ(SendText(a.get(), 1, {2, 0, 0, 0}, "abc"), "");
    } else if (why == 2) {
      a->EndStep(1);
    } else {  // the dealer stops
      CHECK_EQ(Deal(a.get(), 4, 100), "");
      CHECK_EQ(Deal(a.get(), 5, Session::kMaxAhead), "");
      CHECK_EQ(Carry(a.get(), b.get()), "");
      CHECK_EQ(Deal(a.get(), 6, 100), "");
      a->Gate([](const Error&) {});
    }
    CHECK(a->WaitOutgoing(1, 1 << 20, 0) >= static_cast<int64_t>(due));
    CHECK_EQ(Carry(a.get(), b.get()), "");
    a->Abort("");  // which calls the gate
  }
}

TEST(what_is_waited_for_passes_material_that_waits_for_more) {
  auto a = Make(0), b = Make(1);
  DealAhead(a.get(), b.get());
  for (uint32_t site = 3; site < 6; ++site) CHECK_EQ(Deal(a.get(), site, 100), "");
  CHECK_EQ(SendText(a.get(), 1, {1, 9, 0, 0}, "abc"), "");
  std::vector<uint8_t> blob(1 << 12);
  CHECK(a->WaitOutgoing(1, 1 << 12, 0) > 0);
  CHECK(a->Pop(1, blob.data(), 48 + 3) == 48 + 3);
  CHECK(std::memcmp(blob.data() + 48, "abc", 3) == 0);
}

TEST(messages_in_blobs_cut_anywhere_arrive_whole) {
  uint64_t state = 1;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int run = 0; run < 20; ++run) {
    auto a = Make(0), b = Make(1);
    CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
    CHECK_EQ(b->BeginStep(1, Session::kGraph, 4), "");
    size_t arrived = 0, sent = 0;
    const auto ask = [&](uint32_t site, size_t size) {
      const auto done = [&, site, size](const Error& e, Message m) {
        CHECK_EQ(e, "");
        CHECK(std::string(reinterpret_cast<char*>(m.data.get()), m.size) ==
              std::string(size, static_cast<char>('a' + site % 26)));
        ++arrived;
      };
      b->Recv(0, {1, site, 0, 0}, static_cast<int>(site), size, done);
    };
    std::vector<std::pair<uint32_t, size_t>> later;
    for (uint32_t site = 1; site <= 300; ++site) {
      const size_t size = random(20) ? 1 + random(3000) : 1 + random(1 << 20);
      if (random(2)) later.push_back({site, size});
      else ask(site, size);
      if (random(4)) {
        CHECK_EQ(Deal(a.get(), site, size), "");
      } else {
        CHECK_EQ(SendText(a.get(), 1, {1, site, 0, 0},
                          std::string(size, static_cast<char>('a' + site % 26))), "");
      }
      ++sent;
      std::vector<uint8_t> blob(49 + random(random(2) ? 1 << 20 : 200));
      if (random(3) == 0 && a->WaitOutgoing(1, static_cast<int64_t>(blob.size()), 0) > 0) {
        const int64_t used = a->Pop(1, blob.data(), static_cast<int64_t>(blob.size()));
        CHECK_EQ(b->Push(0, blob.data(), used), "");
      }
      if (random(3) == 0) CHECK_EQ(Carry(b.get(), a.get()), "");  // what is released
    }
    for (const auto& [site, size] : later) ask(site, size);
    a->EndStep(1);
    CHECK_EQ(Carry(a.get(), b.get(), 49 + static_cast<int64_t>(random(1 << 18))), "");
    CHECK(arrived == sent);
  }
}

TEST(garbage_and_repeated_frames_are_refused) {
  auto a = Make(0), b = Make(1);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(b->BeginStep(1, Session::kGraph, 4), "");
  uint8_t garbage[20] = {7};
  CHECK(!b->Push(0, garbage, sizeof(garbage)).empty());
  CHECK_EQ(SendText(a.get(), 1, {1, 9, 0, 0}, "hello"), "");
  uint8_t blob[1000];
  const int64_t used = a->Pop(1, blob, sizeof(blob));
  CHECK_EQ(b->Push(0, blob, used), "");
  CHECK(!b->Push(0, blob, used).empty());
  CHECK(!b->Push(0, blob, used - 1).empty());
}

TEST(abort_ends_every_receive) {
  auto a = Make(0);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  std::vector<Error> errors;
  for (uint32_t i = 0; i < 3; ++i) {
    a->Recv(1, {1, i + 1, 0, 0}, 0, 8, [&](const Error& e, Message) { errors.push_back(e); });
  }
  a->Abort("the peer is gone");
  a->Recv(1, {1, 50, 0, 0}, 0, 8, [&](const Error& e, Message) { errors.push_back(e); });
  CHECK_EQ(errors.size(), 4u);
  for (const Error& e : errors) CHECK_EQ(e, "the peer is gone");
  CHECK_EQ(a->WaitOutgoing(1, 100, 0), -1);
}

namespace {

// A frame as a peer sends it: see FrameHeader.
std::vector<uint8_t> Frame(const Tag& tag, uint64_t total, uint64_t offset,
                           const std::string& piece, uint16_t flags = 0) {
  struct {
    uint64_t step, total, offset;
    uint32_t site, iteration, length, with_dealing, ahead;
    uint16_t slot, flags;
  } h{tag.step, total, offset, tag.site, tag.iteration, static_cast<uint32_t>(piece.size()),
      0,        0,     static_cast<uint16_t>(tag.slot), flags};
  static_assert(sizeof(h) == 48, "the frame header");
  std::vector<uint8_t> blob(sizeof(h));
  std::memcpy(blob.data(), &h, sizeof(h));
  blob.insert(blob.end(), piece.begin(), piece.end());
  return blob;
}

constexpr uint16_t kAhead = 1;  // run-ahead material

Error PushFrame(Session* to, int from, const std::vector<uint8_t>& blob) {
  return to->Push(from, blob.data(), static_cast<int64_t>(blob.size()));
}

}  // namespace

// Two messages of one tag, both unread: releasing the second one's credit takes the session's lock.
TEST(abort_lets_go_of_unread_material_of_both_peers) {
  auto a = Make(0);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  for (int peer : {1, 2}) {
    CHECK_EQ(PushFrame(a.get(), peer, Frame({1, 5, 0, 0}, 3, 0, "abc", kAhead)), "");
    CHECK_EQ(PushFrame(a.get(), peer, Frame({1, 6, 0, 0}, 6, 0, "abc", kAhead)), "");
  }
  a->Abort("over");
  CHECK_EQ(a->aborted(), "over");
}

// Whatever a callback or a message's end does, it may use the session.
TEST(callbacks_and_the_ends_of_messages_may_use_the_session) {
  auto a = Make(0), b = Make(1);
  for (auto& s : {a, b}) CHECK_EQ(s->BeginStep(1, Session::kGraph, 4), "");
  struct Uses {
    std::shared_ptr<Session> session;
    ~Uses() { session->counters(); }
  };
  const auto uses = [](const std::shared_ptr<Session>& s) { return std::make_shared<Uses>(Uses{s}); };
  int ended = 0;
  const auto done = [&](const Error&, Message) { ++ended; };
  a->Recv(1, {1, 1, 0, 0}, 0, 8, [done, u = uses(a)](const Error& e, Message m) { done(e, m); });
  a->Recv(1, {1, 1, 0, 0}, 0, 8, [done, u = uses(a)](const Error& e, Message m) { done(e, m); });
  CHECK_EQ(ended, 1);  // two wait for one message
  a->Recv(1, {1, 2, 0, 0}, 1, 8, [done, u = uses(a)](const Error& e, Message m) { done(e, m); });
  a->CancelRecv(1, {1, 2, 0, 0});
  CHECK_EQ(ended, 2);
  static const uint8_t word[8] = {};
  for (uint32_t site : {1, 2}) {
    CHECK_EQ(a->Send(1, {1, site, 0, 0}, false, "", word, sizeof(word), uses(a)), "");
  }
  std::vector<uint8_t> blob(60);  // the first message and a part of a header
  CHECK(a->Pop(1, blob.data(), 60) > 0);
  a->Abort("over");
  CHECK_EQ(ended, 3);
  // a step that ends with unread messages
  CHECK_EQ(PushFrame(b.get(), 0, Frame({1, 5, 0, 0}, 3, 0, "abc", kAhead)), "");
  CHECK_EQ(PushFrame(b.get(), 0, Frame({1, 6, 0, 0}, 6, 0, "abc", kAhead)), "");
  b->EndStep(1);
  CHECK(b->NextDue(0) >= 0);  // which it reports
}

TEST(a_message_that_is_not_of_the_size_that_is_due_ends_the_session_at_its_first_frame) {
  for (bool before : {false, true}) {
    auto a = Make(0);
    CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
    Error failed, pushed;
    const auto recv = [&] {
      a->Recv(1, {1, 5, 0, 0}, 0, 8, [&](const Error& e, Message) { failed = e; });
    };
    if (before) recv();
    pushed = PushFrame(a.get(), 1, Frame({1, 5, 0, 0}, uint64_t{1} << 34, 0, "abc"));
    if (!before) recv();
    CHECK_EQ(failed, "party 1 sent 17179869184 bytes where 8 were due (site 5, step 1, iteration "
                     "0, message 0)");
    CHECK_EQ(pushed, before ? failed : "");
  }
}

// A thousand messages that announce 16 GiB each, of which three bytes come.
TEST(what_is_announced_takes_no_memory) {
  auto a = Make(0);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  for (uint32_t site = 1; site <= 1000; ++site) {
    CHECK_EQ(PushFrame(a.get(), 1, Frame({1, site, 0, 0}, uint64_t{1} << 34, 0, "abc", kAhead)), "");
  }
  long pages = 0;  // of address space
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK_EQ(std::fscanf(file, "%ld", &pages), 1);
  std::fclose(file);
  CHECK(pages < (int64_t{1} << 34) / 4096);
}

TEST(a_message_that_comes_before_it_is_asked_for_arrives_whole) {
  for (size_t ask_at : {0, 1, 7, 40, 1000}) {  // frames
    auto a = Make(0);
    CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
    std::string text(100000, 'x'), got;
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
    size_t frames = 0;
    const auto ask = [&] {
      if (frames++ != ask_at) return;
      a->Recv(1, {1, 5, 0, 0}, 0, text.size(), [&](const Error& e, Message m) {
        CHECK_EQ(e, "");
        got.assign(reinterpret_cast<char*>(m.data.get()), m.size);
      });
    };
    for (size_t at = 0; at < text.size(); at += 999) {
      ask();
      CHECK_EQ(PushFrame(a.get(), 1, Frame({1, 5, 0, 0}, text.size(), at, text.substr(at, 999))), "");
    }
    while (frames <= ask_at) ask();
    CHECK(got == text);
  }
}

TEST(bytes_that_nobody_has_asked_for_are_bounded) {
  auto a = Make(0);
  a->LimitUnasked(1000);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  const std::string text(600, 'x');
  CHECK_EQ(PushFrame(a.get(), 1, Frame({1, 1, 0, 0}, 600, 0, text)), "");
  bool done = false;
  a->Recv(1, {1, 1, 0, 0}, 0, 600, [&](const Error& e, Message) { done = e.empty(); });
  CHECK(done);
  CHECK_EQ(PushFrame(a.get(), 1, Frame({1, 2, 0, 0}, 1200, 0, text)), "");
  CHECK_EQ(PushFrame(a.get(), 2, Frame({1, 2, 0, 0}, 600, 0, text)), "");  // each peer by itself
  CHECK_EQ(PushFrame(a.get(), 1, Frame({1, 3, 0, 0}, 600, 0, text)),
           "party 1 sent more than 1000 bytes that no receive has requested");
  // The rest of a message that a receive requests at that time is expected.
  a->Recv(1, {1, 2, 0, 0}, 1, 1200, [](const Error&, Message) {});
  CHECK_EQ(PushFrame(a.get(), 1, Frame({1, 2, 0, 0}, 1200, 600, text)), "");
  CHECK_EQ(PushFrame(a.get(), 1, Frame({1, 4, 0, 0}, 600, 0, text)), "");
  a->EndStep(1);  // which releases unread messages
  CHECK_EQ(a->BeginStep(2, Session::kGraph, 4), "");
  for (int peer : {1, 2}) {
    CHECK_EQ(PushFrame(a.get(), peer, Frame({2, 1, 0, 0}, 600, 0, text)), "");
  }
}

TEST(steps_far_ahead_are_refused) {
  auto a = Make(0);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(PushFrame(a.get(), 1, Frame({5, 1, 0, 0}, 3, 0, "abc")), "");
  const uint16_t done = 2;
  for (uint64_t step : {uint64_t{1000}, uint64_t{1} << 40, ~uint64_t{0}}) {
    for (uint16_t flags : {uint16_t{0}, done}) {
      CHECK_EQ(PushFrame(a.get(), 1, Frame({step, 1, 0, 0}, 0, 0, "", flags)),
               "party 1 is at a step that is far ahead");
    }
  }
}

TEST(masks_of_a_material_serve_one_step) {
  auto a = Make(0), b = Make(0);
  CHECK_EQ(a->BeginStep(7, Session::kGraph, 64), "");
  PrfStream plain, made, used, own, peers;
  CHECK_EQ(a->Stream(kK1, 0, 3, 7, 0, 0, 16, &plain), "");
  const auto masks = a->KeepMasks(7);
  CHECK(a->KeepMasks(7) == nullptr);  // one material for a step
  CHECK(a->KeepMasks(8) == nullptr);  // the step is not running
  CHECK_EQ(a->Stream(kK1, 0, 3, 7, 0, 0, 16, &made), "");
  CHECK(std::memcmp(plain.key, made.key, sizeof(AesKey)) != 0);  // not the session's key
  auto peer = Make(1);
  CHECK_EQ(peer->BeginStep(7, Session::kGraph, 64), "");
  const auto theirs = peer->KeepMasks(7);
  CHECK_EQ(peer->Stream(kK1, 0, 3, 7, 0, 0, 16, &peers), "");
  CHECK(std::memcmp(peers.key, made.key, sizeof(AesKey)) == 0);  // both holders derive one key
  CHECK(masks != nullptr && theirs != nullptr);
  CHECK_EQ(b->BeginStep(1, Session::kGraph, 64), "");
  CHECK(!b->UseMasks(1, theirs).empty());  // another party's
  CHECK_EQ(b->UseMasks(1, masks), "");
  CHECK(!b->UseMasks(1, masks).empty());
  CHECK_EQ(b->BeginStep(2, Session::kGraph, 64), "");
  CHECK(!b->UseMasks(2, masks).empty());
  CHECK_EQ(b->Stream(kK1, 0, 3, 1, 0, 0, 16, &used), "");
  CHECK_EQ(used.hi, made.hi);
  CHECK_EQ(used.lo, made.lo);
  CHECK_EQ(used.number, made.number);
  CHECK(std::memcmp(used.key, made.key, sizeof(AesKey)) == 0);
  CHECK_EQ(b->Stream(kK1, 0, 3, 2, 0, 0, 16, &own), "");  // other steps keep their masks
  CHECK(own.hi != made.hi);
  const int64_t number = RegisterSource(masks);
  CHECK(TakeSource(number) == masks);
  CHECK(TakeSource(number) == nullptr);
}

TEST(material_is_taken_aside_and_delivered_once) {
  auto a = Make(0), b = Make(1), c = Make(1);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 64), "");
  CHECK_EQ(b->BeginStep(1, Session::kGraph, 64), "");
  CHECK_EQ(b->Collect(1, 0).peer, -1);
  CHECK_EQ(SendText(a.get(), 1, {1, 5, 0, 2}, "abc"), "");
  CHECK_EQ(Carry(a.get(), b.get()), "");
  const auto got = b->Collect(1, 0);
  CHECK_EQ(got.peer, 0);
  CHECK_EQ(got.tag.slot, 2u);
  CHECK_EQ(got.message.size, size_t{3});
  CHECK_EQ(b->Collect(1, 0).peer, -1);

  const uint8_t* data = got.message.data.get();
  CHECK(!c->Feed(0, {4, 5, 0, 2}, data, 3).empty());  // the step is not running
  CHECK_EQ(c->BeginStep(4, Session::kGraph, 64), "");
  CHECK_EQ(c->Feed(0, {4, 5, 0, 2}, data, 3), "");
  CHECK(!c->Feed(0, {4, 5, 0, 2}, data, 3).empty());
  CHECK(!c->WaitFed(0, 2, 0));
  std::string text;
  c->Recv(0, {4, 5, 0, 2}, 0, 3, [&](const Error& e, Message m) {
    CHECK_EQ(e, "");
    text.assign(reinterpret_cast<char*>(m.data.get()), m.size);
    CHECK_EQ(m.depth.ahead, 0u);
  });
  CHECK(text == "abc");
  CHECK(c->WaitFed(0, 0, 0));  // nothing of it is in memory
  // One of another size than is due fails its receive.
  std::string failed;
  c->Recv(0, {4, 6, 0, 0}, 0, 8, [&](const Error& e, Message) { failed = e; });
  CHECK(!c->Feed(0, {4, 6, 0, 0}, data, 3).empty());
  CHECK(!failed.empty());
}

TEST(no_dealer_but_three) {
  auto a = Make(0);
  PrfStream s;
  for (int dealer : {-5, -1, 3, 1000}) CHECK(!a->Stream(kK1, dealer, 1, 1, 0, 0, 16, &s).empty());
}

TEST(faults_are_for_simulated_sessions) {
  CHECK(!Make(0)->SetFault(kDropMask).empty());
  CHECK_EQ(std::make_shared<Session>(0, kKeys, true)->SetFault(kDropMask), "");
}
