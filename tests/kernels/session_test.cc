// Sessions without TensorFlow: numbering, tags, frames, depth.
#include "protocols/kernels/core/session.h"

#include <cstdint>
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
    CHECK_EQ(m.depth.cold, 1u);
  });
  CHECK_EQ(Carry(a.get(), b.get(), 1000), "");
  CHECK(got == text);
  CHECK_EQ(a->counters().payload_sent[1], text.size());
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

TEST(faults_are_for_simulated_sessions) {
  CHECK(!Make(0)->SetFault(kDropMask).empty());
  CHECK_EQ(std::make_shared<Session>(0, kKeys, true)->SetFault(kDropMask), "");
}
