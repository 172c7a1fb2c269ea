#include "trainer/ddp/sharding/node_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace narrowcast::sharding {
namespace {

// Elements of a shard in one job. Two jobs are in flight, so a rank needs 2 MiB of its node's memory, which remain in
// the processor's cache: while one part is written the part before it is read.
constexpr int64_t kPartNumel = int64_t{1} << 18;

}  // namespace

NodeExchange::NodeExchange(ProcessGroupPtr group, std::shared_ptr<const node::FoundNodes> nodes)
    : group_(std::move(group)), nodes_(std::move(nodes)), engine_(engine::Engine::for_group(group_)) {}

std::vector<int64_t> NodeExchange::counts() const {
  std::vector<int64_t> counts;
  for (int64_t node = 0; node < nodes_->layout.nodes(); ++node) {
    counts.push_back(std::ssize(nodes_->layout.ranks_of(node)));
  }
  return counts;
}

void NodeExchange::set_sizes(std::vector<int64_t> numels, int64_t largest) {
  numels_ = std::move(numels);
  jobs_.clear();
  const int64_t parts = std::max<int64_t>(1, (largest + kPartNumel - 1) / kPartNumel);  // One tells of failures.
  for (int64_t index = 0; index < parts; ++index) {
    collectives::NodeAllGatherOptions options{.name = "exchange of shards", .nodes = nodes_};
    for (const int64_t numel : numels_) {
      options.bytes.push_back(part_numel(numel, index, kPartNumel) * static_cast<int64_t>(sizeof(float)));
    }
    jobs_.push_back(std::make_shared<Job>(std::move(options)));
  }
}

void NodeExchange::run(const std::string& name, const std::vector<Elements>& shards,
                       const std::exception_ptr& failure) {
  for (int64_t index = 0; index < std::ssize(jobs_); ++index) {
    const int64_t begin = index * kPartNumel;
    jobs_[index]->set_call({.give =
                                [this, &shards, &failure, index, begin](std::byte* to) {
                                  if (failure) {
                                    std::rethrow_exception(failure);
                                  }
                                  shards[own()].copy_to(reinterpret_cast<float*>(to), begin,
                                                        part_numel(numels_[own()], index, kPartNumel));
                                },
                            .take =
                                [this, &shards, index, begin](int64_t local_rank, const std::byte* from) {
                                  shards[local_rank].copy_from(reinterpret_cast<const float*>(from), begin,
                                                               part_numel(numels_[local_rank], index, kPartNumel));
                                }});
  }
  submit_and_wait(group_, *engine_, name, {jobs_.begin(), jobs_.end()});
}

void NodeExchange::meet(const std::string& name, const std::exception_ptr& failure) {
  const auto job = std::make_shared<Job>(collectives::NodeAllGatherOptions{
      .name = name, .nodes = nodes_, .bytes = std::vector<int64_t>(numels_.size(), 0)});
  job->set_call({.give =
                     [&failure](std::byte* /*to*/) {
                       if (failure) {
                         std::rethrow_exception(failure);
                       }
                     },
                 .take = [](int64_t /*local_rank*/, const std::byte* /*from*/) {}});
  submit_and_wait(group_, *engine_, name, {job});
}

std::vector<std::vector<int64_t>> NodeExchange::all_gather(const std::string& name, const std::vector<int64_t>& counts,
                                                           const std::vector<int64_t>& own_numbers) {
  constexpr auto kNumber = static_cast<int64_t>(sizeof(int64_t));
  std::vector<std::vector<int64_t>> all;
  collectives::NodeAllGatherOptions options{.name = name, .nodes = nodes_};
  for (const int64_t count : counts) {
    all.emplace_back(count);
    options.bytes.push_back(count * kNumber);
  }
  all[own()] = own_numbers;
  const auto job = std::make_shared<Job>(std::move(options));
  job->set_call({.give =
                     [&](std::byte* to) {
                       if (!all[own()].empty()) std::memcpy(to, all[own()].data(), all[own()].size() * kNumber);
                     },
                 .take =
                     [&](int64_t local_rank, const std::byte* from) {
                       std::vector<int64_t>& numbers = all[local_rank];
                       if (!numbers.empty()) std::memcpy(numbers.data(), from, numbers.size() * kNumber);
                     }});
  submit_and_wait(group_, *engine_, name, {job});
  return all;
}

}  // namespace narrowcast::sharding
