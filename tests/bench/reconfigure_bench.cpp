// How long ranks need for new connections after a loss: a new Gloo group over the same store, as recovery in place
// makes it, beside LibTorch 2.15's reconfigure() of a group that lives on. Both take turns, and end with an all-reduce.
// Ranks are threads on the loopback interface.
//
// Two quiet processors, LibTorch 2.15.0, November 2026: with 2, 3 and 6 ranks a new group took 4, 1 and 7 ms, and
// reconfigure() 11, 17 and 42 ms. So recovery makes new groups with all versions.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "trainer/base/program/command_line.h"

ABSL_FLAG(int64_t, ranks, 6, "threads, each of which is a rank");
ABSL_FLAG(int64_t, turns, 30, "measured turns");

namespace narrowcast {
namespace {

using c10d::ProcessGroupGloo;
using Group = c10::intrusive_ptr<ProcessGroupGloo>;
using Store = c10::intrusive_ptr<c10d::Store>;

struct Place {
  int64_t rank = 0;
  int64_t ranks = 0;
};

Group make_group(const Store& store, const std::string& name, const Place& place, bool can_change) {
  auto options = ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices.push_back(ProcessGroupGloo::createDeviceForInterface("lo", /*lazyInit=*/false));
  options->enable_reconfigure = can_change;
  return c10::make_intrusive<ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store),
                                               static_cast<int>(place.rank), static_cast<int>(place.ranks), options);
}

// Each rank publishes the handle of its end. A rank that is not lost keeps its group.
void reconfigure(ProcessGroupGloo& group, const Store& store, int64_t turn, const Place& place) {
  const auto key = [&](int64_t rank) { return "handle/" + std::to_string(turn) + "/" + std::to_string(rank); };
  const std::string own = group.get_reconfigure_handle();
  store->set(key(place.rank), std::vector<uint8_t>(own.begin(), own.end()));
  std::vector<std::string> handles;
  for (int64_t rank = 0; rank < place.ranks; ++rank) {
    const std::vector<uint8_t> handle = store->get(key(rank));
    handles.emplace_back(handle.begin(), handle.end());
  }
  c10d::ReconfigureOptions options;
  options.uuid = turn + 1;
  options.handles = std::move(handles);
  group.reconfigure(options)->wait();
}

void all_reduce(ProcessGroupGloo& group) {
  std::vector<at::Tensor> tensors = {at::ones({4})};
  group.allreduce(tensors)->wait();
}

void print(const char* what, std::vector<double> milliseconds) {
  std::ranges::sort(milliseconds);
  std::printf("%s: median %.1f ms, least %.1f, most %.1f\n", what, milliseconds[milliseconds.size() / 2],
              milliseconds.front(), milliseconds.back());
}

// Rank 0 prints. All ranks begin each measured step together.
void run_rank(const Store& store, const Place& place, int64_t turns, std::barrier<>& meet) {
  const Group lasting = make_group(store, "lasting", place, /*can_change=*/true);
  std::vector<double> anew;
  std::vector<double> changed;
  const auto measure = [&](std::vector<double>& milliseconds, const auto& connect) {
    meet.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    connect();
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  };
  for (int64_t turn = 0; turn < turns; ++turn) {
    Group group;  // Ends after the measurement.
    measure(anew, [&] {
      group = make_group(store, "new/" + std::to_string(turn), place, /*can_change=*/false);
      all_reduce(*group);
    });
    measure(changed, [&] {
      reconfigure(*lasting, store, turn, place);
      all_reduce(*lasting);
    });
  }
  if (place.rank == 0) {
    print("new group", anew);
    print("reconfigure", changed);
  }
  meet.arrive_and_wait();
}

int run(int64_t ranks, int64_t turns) {
  TORCH_CHECK_VALUE(ranks >= 2, "--ranks must be at least 2, but is ", ranks);
  TORCH_CHECK_VALUE(turns >= 1, "--turns must be at least 1, but is ", turns);
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> meet(ranks);
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { run_rank(store, {rank, ranks}, turns, meet); });
  }
  return 0;
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_reconfigure_bench";
  description.version = "0";
  description.summary = "Times new connections of ranks: a new Gloo group beside LibTorch 2.15's reconfigure().";
  description.usage = "narrowcast_reconfigure_bench [flags]";
  description.groups = {{"Measurement", {"ranks", "turns"}}};
  description.examples = {{"two ranks", "narrowcast_reconfigure_bench --ranks=2"}};
  description.exit_codes = {{0, "the times are printed"}, {1, "a rank failed"}};
  return description;
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::description(), argc, argv, [](const auto&) {
    return narrowcast::run(absl::GetFlag(FLAGS_ranks), absl::GetFlag(FLAGS_turns));
  });
}
