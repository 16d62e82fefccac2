// The timeline of a session: whose message ended a wait, and what was kept.
#include "protocols/kernels/core/timeline.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocols/kernels/core/session.h"
#include "tests/kernels/check.h"

using namespace tfe_bench;

namespace {

const uint8_t kKeys[3][16] = {{1}, {2}, {3}};
constexpr int64_t kMilli = 1'000'000;

void Rest(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void Work(int ms) {
  const int64_t until = Timeline::Now() + ms * kMilli;
  while (Timeline::Now() < until) {
  }
}

}  // namespace

TEST(idle_time_counts_for_the_party_whose_message_ends_it) {
  Timeline t;
  t.Observe(Timeline::kTotals);
  Rest(30);
  t.Came(1, 1, 5);
  Rest(20);
  t.Came(2, 1, 6);
  const auto seen = t.totals();
  CHECK(seen.waited[0] == 0);
  // Another process's load may lengthen a rest, never shorten it.
  CHECK(seen.waited[1] > 25 * kMilli);
  CHECK(seen.waited[2] > 15 * kMilli);
}

TEST(work_is_not_waiting) {
  Timeline t;
  t.Observe(Timeline::kTotals);
  const int64_t began = Timeline::Now();
  Work(40);
  t.Came(1, 1, 5);
  const int64_t passed = Timeline::Now() - began;
  // Only what other processes took of the processor may look idle.
  CHECK(t.totals().waited[1] <= static_cast<uint64_t>(passed));
  const uint64_t before = t.totals().waited[1];
  Rest(10);
  t.Acted();  // what was before an action is not part of the next wait
  t.Came(1, 1, 5);
  CHECK_EQ(t.totals().waited[1], before);
}

TEST(nothing_is_kept_unless_somebody_observes) {
  Timeline t;
  Rest(2);
  t.Came(1, 1, 5);
  t.StepBegan(1);
  t.StepEnded(1);
  CHECK_EQ(t.totals().waited[1], 0u);
  CHECK(t.events().empty());
  t.Observe(Timeline::kTotals);
  t.StepBegan(2);
  t.StepEnded(2);
  CHECK(t.events().empty());
  t.Observe(Timeline::kEvents);
  t.StepBegan(3);
  t.StepEnded(3);
  CHECK_EQ(t.events().size(), size_t{1});
  t.Observe(Timeline::kOff);
  CHECK(t.events().empty());
}

TEST(a_message_is_kept_at_both_ends_with_its_name_and_size) {
  auto a = std::make_shared<Session>(0, kKeys, false), b = std::make_shared<Session>(1, kKeys, false);
  a->timeline().Observe(Timeline::kEvents);
  b->timeline().Observe(Timeline::kEvents);
  CHECK_EQ(a->BeginStep(1, Session::kGraph, 4), "");
  CHECK_EQ(b->BeginStep(1, Session::kGraph, 4), "");
  auto text = std::make_shared<std::string>(5000, 'x');
  CHECK_EQ(a->Send(1, {1, 5, 0, 3}, true, "", reinterpret_cast<const uint8_t*>(text->data()),
                   text->size(), text),
           "");
  bool came = false;
  b->Recv(0, {1, 5, 0, 3}, 0, 5000, [&](const Error& e, Message) { came = e.empty(); });
  Rest(2);
  std::vector<uint8_t> blob(1000);
  int64_t size;
  while ((size = a->WaitOutgoing(1, 1000, 0)) > 0) {
    CHECK_EQ(b->Push(0, blob.data(), a->Pop(1, blob.data(), size)), "");
  }
  CHECK(came);
  a->EndStep(1);
  const auto sent = a->timeline().events();
  CHECK_EQ(sent.size(), size_t{2});
  CHECK_EQ(sent[0].kind, Timeline::kSent);
  CHECK(sent[0].about <= sent[0].begin && sent[0].begin < sent[0].end);
  CHECK_EQ(sent[0].bytes, 5000u);
  CHECK_EQ(sent[0].peer, 1);
  CHECK_EQ(sent[0].run_ahead, 1);
  CHECK_EQ(sent[1].kind, Timeline::kStep);
  const auto received = b->timeline().events();
  CHECK_EQ(received[0].kind, Timeline::kReceived);
  CHECK_EQ(received[0].site, 5u);
  CHECK_EQ(received[0].slot, 3u);
  CHECK(received[0].about > 0 && received[0].about < received[0].begin);
  CHECK(a->timeline().totals().packed > 0);
  CHECK(b->timeline().totals().unpacked > 0);
  CHECK(b->timeline().totals().waited[0] > 0);
  CHECK_EQ(received[1].kind, Timeline::kWaited);
}
