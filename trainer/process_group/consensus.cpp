#include "trainer/process_group/consensus.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "trainer/process_group/network_errors.h"

namespace narrowcast {
namespace {

// Where the group's backend wants its tensors.
at::Device collective_device(const ProcessGroupPtr& group) {
  const std::vector<at::Device> devices = group->getDeviceTypes();
  const bool has_cpu = std::find(devices.begin(), devices.end(), at::Device(at::kCPU)) != devices.end();
  return has_cpu ? at::Device(at::kCPU) : devices.at(0);
}

std::vector<double> all_reduce(const ProcessGroupPtr& group, const std::vector<double>& values,
                               c10d::ReduceOp::RedOpType operation) {
  std::vector<at::Tensor> tensors{at::tensor(values, at::kDouble).to(collective_device(group))};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  with_network_errors(group->getRank(), "all-reduce of scalars", [&] { group->allreduce(tensors, options)->wait(); });
  const at::Tensor result = tensors[0].cpu();
  return {result.data_ptr<double>(), result.data_ptr<double>() + result.numel()};
}

// `row` of every rank as one tensor on the CPU, [world size, numel of row].
at::Tensor all_gather_rows(const ProcessGroupPtr& group, const at::Tensor& row) {
  at::Tensor input = row.to(collective_device(group));
  at::Tensor output = at::empty({group->getSize() * row.numel()}, input.options());
  with_network_errors(group->getRank(), "all-gather of values", [&] { group->_allgather_base(output, input)->wait(); });
  return output.view({group->getSize(), row.numel()}).cpu();
}

at::Tensor bytes_of(const std::string& text, int64_t padded_size) {
  at::Tensor bytes = at::zeros({padded_size}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

// FNV-1a, 64 bits: the same on every machine, unlike std::hash.
int64_t fingerprint(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char character : text) {
    hash = (hash ^ static_cast<uint8_t>(character)) * 0x100000001b3;
  }
  return static_cast<int64_t>(hash);
}

// JSON as the wire form: a list of [name, value].
std::string serialize(const std::vector<NamedValue>& values) {
  auto list = nlohmann::json::array();
  for (const NamedValue& value : values) {
    list.push_back({value.name, value.value});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string describe_ranks(const std::vector<int64_t>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                      ranks.size() == 1 ? " has " : " have ");
}

// What `rank`'s list holds at `place`, or "nothing" past its end.
std::string entry_text(const nlohmann::json& list, size_t place, const std::string& common_name) {
  if (place >= list.size()) {
    return "nothing";
  }
  const auto name = list[place][0].get<std::string>();
  const auto value = list[place][1].get<std::string>();
  return name == common_name ? value : absl::StrCat(name, " ", value);
}

std::string describe_difference(const std::vector<nlohmann::json>& lists, size_t place) {
  const auto longest =
      std::max_element(lists.begin(), lists.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const auto name = (place < lists[0].size() ? lists[0] : *longest)[place][0].get<std::string>();
  std::map<std::string, std::vector<int64_t>> ranks_by_entry;
  std::vector<std::string> order;  // Of the first rank that has each entry.
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const std::string entry = entry_text(lists[rank], place, name);
    auto& ranks = ranks_by_entry[entry];
    if (ranks.empty()) {
      order.push_back(entry);
    }
    ranks.push_back(static_cast<int64_t>(rank));
  }
  return absl::StrCat(
      name, " differs between ranks: ", absl::StrJoin(order, ", ", [&](std::string* out, const std::string& entry) {
        absl::StrAppend(out, describe_ranks(ranks_by_entry[entry]), entry);
      }));
}

size_t first_difference(const std::vector<nlohmann::json>& lists) {
  const auto differs = [&](size_t place) {
    return std::any_of(lists.begin(), lists.end(), [&](const nlohmann::json& list) {
      return place >= list.size() || place >= lists[0].size() || list[place] != lists[0][place];
    });
  };
  size_t place = 0;
  while (!differs(place)) {
    ++place;
  }
  return place;
}

}  // namespace

void barrier(const ProcessGroupPtr& group, const std::string& step) {
  // An all-reduce is a barrier on every backend, and needs no device of its own choice as NCCL's barrier does.
  with_network_errors(group->getRank(), step, [&] {
    std::vector<at::Tensor> token{at::zeros({1}, collective_device(group))};
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
  const at::Tensor lengths = all_gather_rows(group, at::full({1}, static_cast<int64_t>(text.size()), at::kLong));
  const int64_t longest = std::max<int64_t>(1, lengths.max().item<int64_t>());
  const at::Tensor rows = all_gather_rows(group, bytes_of(text, longest));
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < group->getSize(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(rows[rank].data_ptr<uint8_t>()), lengths[rank][0].item<int64_t>());
  }
  return texts;
}

void check_equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<NamedValue>& values) {
  const std::string text = serialize(values);
  const at::Tensor prints = all_gather_rows(group, at::full({1}, fingerprint(text), at::kLong));
  if (prints.eq(prints[0]).all().item<bool>()) {
    return;
  }
  std::vector<nlohmann::json> lists;
  for (const std::string& rank_text : all_gather_text(group, text)) {
    lists.push_back(nlohmann::json::parse(rank_text));
  }
  TORCH_CHECK_VALUE(false, describe_difference(lists, first_difference(lists)));
}

}  // namespace narrowcast
