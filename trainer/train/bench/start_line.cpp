#include "trainer/train/bench/start_line.h"

#include <ATen/ops/zeros.h>

#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"

namespace narrowcast::bench {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr const char* kComparing = "comparing the clocks of ranks";
constexpr int kPings = 4;
constexpr int kTag = 1;

// Time from the agreement on a start until the start, besides what the agreement takes.
constexpr double kMarginSeconds = 1e-3;

double seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

at::Tensor message() { return at::zeros({1}, at::kDouble); }

WorkPtr receive(const ProcessGroupPtr& group, const at::Tensor& into, int64_t rank) {
  std::vector<at::Tensor> tensors{into};
  return group->recv(tensors, static_cast<int>(rank), kTag);
}

void send(const ProcessGroupPtr& group, const at::Tensor& value, int64_t rank) {
  std::vector<at::Tensor> tensors{value};
  group->send(tensors, static_cast<int>(rank), kTag)->wait();
}

// Rank 0 answers each ping with its time. It posts its receives early, because a sender of Gloo waits for them.
void answer(const ProcessGroupPtr& group) {
  std::vector<std::vector<WorkPtr>> pings(kPings);
  std::vector<at::Tensor> received;
  for (auto& of_all : pings) {
    for (int64_t rank = 1; rank < group->getSize(); ++rank) {
      received.push_back(message());
      of_all.push_back(receive(group, received.back(), rank));
    }
  }
  for (auto& of_all : pings) {
    for (size_t i = 0; i < of_all.size(); ++i) {
      of_all[i]->wait();
      send(group, message().fill_(seconds()), static_cast<int64_t>(i) + 1);
    }
  }
}

struct ClockComparison {
  double ahead = 0;
  double round_trip = 0;
};

ClockComparison ask(const ProcessGroupPtr& group) {
  ClockComparison best{.round_trip = std::numeric_limits<double>::infinity()};
  for (int ping = 0; ping < kPings; ++ping) {
    const at::Tensor answer = message();
    const WorkPtr work = receive(group, answer, 0);
    const double begin = seconds();
    send(group, message(), 0);
    work->wait();
    const double end = seconds();
    if (end - begin < best.round_trip) best = {answer.item<double>() - (begin + end) / 2, end - begin};
  }
  return best;
}

}  // namespace

StartLine::StartLine(const ProcessGroupPtr& group, double least_round_trip) : group_(group) {
  if (!collectives::moves_cpu_tensors(group)) return;
  barrier(group, kComparing);
  with_network_errors(group->getRank(), kComparing, [&] {
    if (group->getRank() == 0) {
      answer(group);
    } else {
      const ClockComparison found = ask(group);
      ahead_ = found.ahead;
      round_trip_ = found.round_trip;
    }
  });
  round_trip_ = all_reduce_max(group, {round_trip_})[0];
  is_long_ = round_trip_ >= least_round_trip;
}

double StartLine::now() const { return seconds() + ahead_; }

void StartLine::wait(const std::string& what) const {
  barrier(group_, what);
  if (!is_long_) return;
  const double start = all_reduce_max(group_, {now()})[0] + 2 * round_trip_ + kMarginSeconds;
  std::this_thread::sleep_for(std::chrono::duration<double>(start - now()));
}

}  // namespace narrowcast::bench
