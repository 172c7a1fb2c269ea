#include "trainer/ddp/sharding/group_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::sharding {
namespace {

// Elements of a shard in one job. A rank holds the messages of as many ranks as there are nodes, of two jobs. Messages
// that are too small cost more than they save. Parts must begin at blocks of every format.
int64_t elements_of_a_part(const node::NodeLayout& layout) {
  constexpr int64_t kMostNumel = int64_t{1} << 18;
  constexpr int64_t kLeastNumel = int64_t{1} << 15;
  return std::max(kMostNumel / layout.nodes(), kLeastNumel) / cpu::kWireGrain * cpu::kWireGrain;
}

// Writes `numel` differences from element `begin` on.
void subtract(const Elements& minuend, const Elements& subtrahend, float* to, int64_t begin, int64_t numel) {
  constexpr int64_t kBlock = int64_t{1} << 13;  // Stays in the first cache until it is subtracted from.
  for (int64_t done = 0; done < numel; done += kBlock) {
    const int64_t block = std::min(kBlock, numel - done);
    minuend.copy_to(to + done, begin + done, block);
    subtrahend.subtract_from(to + done, begin + done, block);
  }
}

uint8_t* bytes_at(std::byte* message) { return reinterpret_cast<uint8_t*>(message); }
const uint8_t* bytes_at(const std::byte* message) { return reinterpret_cast<const uint8_t*>(message); }

}  // namespace

GroupExchange::GroupExchange(ProcessGroupPtr group, std::shared_ptr<const node::FoundNodes> nodes)
    : group_(std::move(group)),
      nodes_(std::move(nodes)),
      engine_(engine::Engine::for_group(group_)),
      memory_(collectives::AllReduceJob::memory_of(group_).narrow),
      most_numel_(elements_of_a_part(nodes_->layout)),
      decoded_(at::empty({most_numel_}, at::kFloat)) {}

void GroupExchange::set_sizes(std::vector<int64_t> numels, int64_t largest) {
  finish();
  numels_ = std::move(numels);
  parts_ = std::max<int64_t>(1, (largest + most_numel_ - 1) / most_numel_);  // At least one, which tells of failures.
  jobs_.clear();
}

int64_t GroupExchange::part_numel(int64_t shard, int64_t index) const {
  return sharding::part_numel(numels_[shard], index, most_numel_);
}

std::vector<std::shared_ptr<GroupExchange::Job>>& GroupExchange::jobs_of(WireFormat format) {
  const auto found = std::ranges::find(jobs_, format, &Jobs::format);
  if (found != jobs_.end()) {
    return found->jobs;
  }
  Jobs made{format, {}};
  for (int64_t index = 0; index < parts_; ++index) {
    collectives::AllGatherOptions options{.name = "exchange of shards", .rank = own(), .nodes = nodes_};
    for (int64_t shard = 0; shard < count(); ++shard) {
      options.bytes.push_back(encoded_size(part_numel(shard, index), format));
    }
    made.jobs.push_back(std::make_shared<Job>(std::move(options), memory_));
  }
  return jobs_.emplace_back(std::move(made)).jobs;
}

// The engine ends jobs in the order in which it gets them.
void GroupExchange::exchange(const std::string& name, WireFormat format, const Give& give, const Take& take,
                             const std::exception_ptr& failure) {
  finish();
  // The jobs share it, because they run on after this function has returned.
  const std::shared_ptr<const collectives::WireCodec> codec = collectives::make_wire_codec(format, at::kCPU);
  const std::vector<std::shared_ptr<Job>>& jobs = jobs_of(format);
  running_ = std::make_unique<RunningJobs>(group_, name);
  for (int64_t index = std::ssize(jobs) - 1; index >= 0; --index) {
    const int64_t begin = index * most_numel_;
    jobs[index]->set_call({.give =
                               [=, this](std::byte* to) {
                                 if (failure) {
                                   std::rethrow_exception(failure);
                                 }
                                 const int64_t numel = part_numel(own(), index);
                                 if (numel > 0) {
                                   give(decoded_.mutable_data_ptr<float>(), begin, numel);
                                   codec->encode({}, {decoded_, {0, numel}}, bytes_at(to));
                                 }
                               },
                           .take =
                               [=, this](int64_t shard, const std::byte* from) {
                                 const int64_t numel = part_numel(shard, index);
                                 codec->decode(bytes_at(from), {decoded_, {0, numel}});
                                 take(shard, decoded_.const_data_ptr<float>(), begin, numel);
                               }});
    bytes_sent_ += jobs[index]->payload_bytes();
    running_->submit(*engine_, jobs[index]);
  }
}

void GroupExchange::wait_from(int64_t begin) {
  if (running_ == nullptr) {
    return;
  }
  const int64_t jobs = std::clamp<int64_t>(parts_ - begin / most_numel_, 0, parts_);
  jobs == parts_ ? finish() : running_->wait_for(jobs);
}

void GroupExchange::finish() {
  if (const std::unique_ptr<RunningJobs> running = std::exchange(running_, nullptr)) {
    running->wait_for_all();
    is_complete_ = true;
  }
}

void GroupExchange::begin_alone() {
  finish();
  is_complete_ = false;
  added_.assign(count(), std::vector<char>(parts_, 0));
}

void GroupExchange::finish_alone(int64_t shard, WireFormat format, const Elements& minuend, const Elements& elements) {
  const auto codec = collectives::make_wire_codec(format, at::kCPU);
  for (int64_t index = 0; index < parts_; ++index) {
    const int64_t numel = part_numel(shard, index);
    if (numel == 0 || added_[shard][index] != 0) continue;
    const int64_t begin = index * most_numel_;
    at::Tensor message = at::empty({encoded_size(numel, format)}, at::kByte);
    subtract(minuend, elements, decoded_.mutable_data_ptr<float>(), begin, numel);
    codec->encode({}, {decoded_, {0, numel}}, message.mutable_data_ptr<uint8_t>());
    codec->decode(message.const_data_ptr<uint8_t>(), {decoded_, {0, numel}});
    elements.add_from(decoded_.const_data_ptr<float>(), begin, numel);
    added_[shard][index] = 1;
  }
}

void GroupExchange::start(const std::string& name, const std::vector<Elements>& shards,
                          const std::exception_ptr& failure) {
  finish();
  is_complete_ = false;
  start_copying(name, shards, failure);
}

void GroupExchange::start_copying(const std::string& name, const std::vector<Elements>& shards,
                                  const std::exception_ptr& failure) {
  const auto all = std::make_shared<const std::vector<Elements>>(shards);
  const auto give = [this, all](float* to, int64_t begin, int64_t numel) { (*all)[own()].copy_to(to, begin, numel); };
  const auto take = [this, all](int64_t shard, const float* from, int64_t begin, int64_t numel) {
    if (shard != own()) {
      (*all)[shard].copy_from(from, begin, numel);
    }
  };
  exchange(name, WireFormat::kFp32, give, take, failure);
}

void GroupExchange::start_differences(const std::string& name, WireFormat format, const Elements& minuend,
                                      const std::vector<Elements>& shards, const std::exception_ptr& failure) {
  const auto all = std::make_shared<const std::vector<Elements>>(shards);
  begin_alone();
  const auto give = [this, all, minuend](float* to, int64_t begin, int64_t numel) {
    subtract(minuend, (*all)[own()], to, begin, numel);
  };
  const auto take = [this, all](int64_t shard, const float* from, int64_t begin, int64_t numel) {
    (*all)[shard].add_from(from, begin, numel);
    added_[shard][begin / most_numel_] = 1;
  };
  exchange(name, format, give, take, failure);
}

void GroupExchange::run(const std::string& name, const std::vector<Elements>& shards,
                        const std::exception_ptr& failure) {
  start_copying(name, shards, failure);
  finish();
}

void GroupExchange::move(const std::string& name, const Elements& own, const std::vector<Elements>& shards) {
  const auto all = std::make_shared<const std::vector<Elements>>(shards);
  const auto give = [own](float* to, int64_t begin, int64_t numel) {
    own.copy_to(to, begin, numel);
    own.release(begin, numel);
  };
  const auto take = [all](int64_t shard, const float* from, int64_t begin, int64_t numel) {
    (*all)[shard].copy_from(from, begin, numel);
  };
  exchange(name, WireFormat::kFp32, give, take, nullptr);
  finish();
}

void GroupExchange::add_differences(const std::string& name, WireFormat format, const Elements& minuend,
                                    const std::vector<Elements>& shards, const std::exception_ptr& failure) {
  start_differences(name, format, minuend, shards, failure);
  finish();
}

std::vector<std::vector<int64_t>> GroupExchange::all_gather(const std::string& name, const std::vector<int64_t>& counts,
                                                            const std::vector<int64_t>& own_numbers) {
  constexpr auto kNumber = static_cast<int64_t>(sizeof(int64_t));
  std::vector<std::vector<int64_t>> all;
  collectives::AllGatherOptions options{.name = name, .rank = own(), .nodes = nodes_};
  for (const int64_t numbers : counts) {
    all.emplace_back(numbers);
    options.bytes.push_back(numbers * kNumber);
  }
  const auto job = std::make_shared<Job>(std::move(options), memory_);
  job->set_call(
      {.give =
           [&](std::byte* to) {
             if (!own_numbers.empty()) {
               std::memcpy(to, own_numbers.data(), own_numbers.size() * kNumber);
             }
           },
       .take = [&](int64_t shard,
                   const std::byte* from) { std::memcpy(all[shard].data(), from, all[shard].size() * kNumber); }});
  submit_and_wait(group_, *engine_, name, {job});
  return all;
}

}  // namespace narrowcast::sharding
