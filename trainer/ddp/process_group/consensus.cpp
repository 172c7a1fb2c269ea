#include <narrowcast/consensus.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include <narrowcast/network_errors.h>
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "trainer/base/files/hash.h"

namespace narrowcast {
namespace {

constexpr int64_t kLongestText = int64_t{64} << 20;  // bytes accepted from a rank

std::vector<double> all_reduce(const ProcessGroupPtr& group, const std::vector<double>& values,
                               c10d::ReduceOp::RedOpType operation) {
  std::vector<at::Tensor> tensors{at::tensor(values, at::kDouble).to(collectives::any_device(group))};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  with_network_errors(group->getRank(), "all-reduce of scalars", [&] { group->allreduce(tensors, options)->wait(); });
  const at::Tensor result = tensors[0].cpu();
  return {result.data_ptr<double>(), result.data_ptr<double>() + result.numel()};
}

at::Tensor all_gather_values(const ProcessGroupPtr& group, const at::Tensor& row) {
  return with_network_errors(group->getRank(), "all-gather of values", [&] {
    return collectives::all_gather_rows(group, row.to(collectives::any_device(group)));
  });
}

at::Tensor bytes_of(const std::string& text, int64_t padded_size) {
  at::Tensor bytes = at::zeros({padded_size}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

void barrier(const ProcessGroupPtr& group, const std::string& step) {
  // An all-reduce is a barrier on every backend. Unlike NCCL's barrier, it does not have to choose a device.
  with_network_errors(group->getRank(), step, [&] {
    std::vector<at::Tensor> token{at::zeros({1}, collectives::any_device(group))};
    group->allreduce(token)->wait();
  });
}

std::vector<double> all_reduce_sum(const ProcessGroupPtr& group, const std::vector<double>& values) {
  return all_reduce(group, values, c10d::ReduceOp::SUM);
}

std::vector<double> all_reduce_max(const ProcessGroupPtr& group, const std::vector<double>& values) {
  return all_reduce(group, values, c10d::ReduceOp::MAX);
}

// Lengths first, then texts padded to the longest.
std::vector<std::string> all_gather_text(const ProcessGroupPtr& group, const std::string& text) {
  const at::Tensor lengths = all_gather_values(group, at::full({1}, static_cast<int64_t>(text.size()), at::kLong));
  for (int64_t rank = 0; rank < group->getSize(); ++rank) {
    const int64_t length = lengths[rank][0].item<int64_t>();
    TORCH_CHECK_WITH(DistBackendError, length >= 0 && length <= kLongestText, "rank ", rank, " announced a text of ",
                     length, " bytes, where at most ", kLongestText, " are taken");
  }
  const int64_t longest = std::max<int64_t>(1, lengths.max().item<int64_t>());
  const at::Tensor rows = all_gather_values(group, bytes_of(text, longest));
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < group->getSize(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(rows[rank].data_ptr<uint8_t>()), lengths[rank][0].item<int64_t>());
  }
  return texts;
}

// As collectives::agree, but lists may be as long as a model's parameters. So only hashes are sent if all are equal.
void check_equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<NamedValue>& values) {
  collectives::Announcement own;
  for (const NamedValue& value : values) {
    own.entries.push_back({value.name, value.value});
  }
  const std::string message = collectives::to_message(own);
  const at::Tensor hashes = all_gather_values(group, at::full({1}, static_cast<int64_t>(fnv1a(message)), at::kLong));
  if (!hashes.eq(hashes[0]).all().item<bool>()) {
    const std::vector<std::string> messages = all_gather_text(group, message);
    collectives::check_announcements(group->getRank(), "comparing values", {messages.begin(), messages.end()});
  }
}

}  // namespace narrowcast
