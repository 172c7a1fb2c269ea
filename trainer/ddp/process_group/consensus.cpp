#include <narrowcast/consensus.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include <narrowcast/errors.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/group.h"
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/json.h"
#include "trainer/ddp/process_group/first_failure.h"

namespace narrowcast {
namespace {

constexpr int64_t kLongestText = int64_t{64} << 20;  // bytes that are taken from a rank
constexpr size_t kLongestFailure = 2000;             // bytes

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

// JSON as the wire form: a list of [name, value].
std::string serialize(const std::vector<NamedValue>& values) {
  auto list = nlohmann::json::array();
  for (const NamedValue& value : values) {
    list.push_back({value.name, value.value});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Reads what `rank` serialised.
std::vector<NamedValue> parse_values(const std::string& text, size_t rank) {
  const auto is_entry = [](const nlohmann::json& entry) {
    return entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string();
  };
  const files::ListOfRank list{.text = text, .rank = rank, .what = "its values", .most_bytes = kLongestText};
  std::vector<NamedValue> values;
  for (const nlohmann::json& entry : files::parse_list(list, is_entry)) {
    values.push_back({entry[0].get<std::string>(), entry[1].get<std::string>()});
  }
  return values;
}

// What one rank has, by name. Of a name that occurs twice, the first.
using ValuesByName = std::map<std::string, std::string>;

// "rank 0 has 8", "ranks 1, 2 do not have it": of the ranks in the order of the first that has each value.
std::vector<std::string> describe_values(const std::vector<ValuesByName>& lists, const std::string& name) {
  std::vector<std::pair<std::optional<std::string>, std::vector<int64_t>>> ranks_by_value;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const auto entry = lists[rank].find(name);
    const auto value = entry == lists[rank].end() ? std::nullopt : std::optional(entry->second);
    auto known = std::find_if(ranks_by_value.begin(), ranks_by_value.end(),
                              [&](const auto& other) { return other.first == value; });
    if (known == ranks_by_value.end()) {
      known = ranks_by_value.insert(known, {value, {}});
    }
    known->second.push_back(static_cast<int64_t>(rank));
  }
  std::vector<std::string> texts;
  for (const auto& [value, ranks] : ranks_by_value) {
    const bool one = ranks.size() == 1;
    texts.push_back(value
                        ? c10::str(describe_ranks(ranks), one ? " has " : " have ", printable(*value, kLongestCompared))
                        : c10::str(describe_ranks(ranks), one ? " does not have it" : " do not have it"));
  }
  return texts;
}

// Every name, those that all ranks have first: another hook, say, has other options, too.
std::vector<std::string> names_of(const std::vector<std::vector<NamedValue>>& lists,
                                  const std::vector<ValuesByName>& by_name) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const std::vector<NamedValue>& list : lists) {
    for (const NamedValue& value : list) {
      if (seen.insert(value.name).second) {
        names.push_back(value.name);
      }
    }
  }
  std::stable_partition(names.begin(), names.end(), [&](const std::string& name) {
    return std::all_of(by_name.begin(), by_name.end(), [&](const auto& list) { return list.contains(name); });
  });
  return names;
}

// Says how lists differ that are not equal.
std::string describe_difference(const std::vector<std::vector<NamedValue>>& lists) {
  std::vector<ValuesByName> by_name(lists.size());
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (const NamedValue& value : lists[rank]) {
      by_name[rank].emplace(value.name, value.value);
    }
  }
  for (const std::string& name : names_of(lists, by_name)) {
    const std::vector<std::string> texts = describe_values(by_name, name);
    if (texts.size() > 1) {
      return c10::str(printable(name, kLongestCompared), " differs between ranks: ", c10::Join(", ", texts));
    }
  }
  for (size_t rank = 1; rank < lists.size(); ++rank) {
    for (size_t place = 0; place < std::min(lists[0].size(), lists[rank].size()); ++place) {
      if (lists[0][place].name != lists[rank][place].name) {
        return c10::str("the order differs between ranks: where rank 0 has ",
                        printable(lists[0][place].name, kLongestCompared), ", rank ", rank, " has ",
                        printable(lists[rank][place].name, kLongestCompared));
      }
    }
  }
  return "a name that occurs several times differs between ranks";
}

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return printable(error.what_without_backtrace(), kLongestFailure);
  } catch (const CorruptInputError& error) {
    return printable(error.what_without_backtrace(), kLongestFailure);
  } catch (const OutputError& error) {
    return printable(error.what_without_backtrace(), kLongestFailure);
  }
  return "";
}

}  // namespace

void barrier(const ProcessGroupPtr& group, const std::string& step) {
  // An all-reduce is a barrier on every backend, and needs no device of its own choice as NCCL's barrier does.
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

void check_equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<NamedValue>& values) {
  const std::string text = serialize(values);
  const at::Tensor prints = all_gather_values(group, at::full({1}, static_cast<int64_t>(fnv1a(text)), at::kLong));
  if (prints.eq(prints[0]).all().item<bool>()) {
    return;
  }
  std::vector<std::vector<NamedValue>> lists;
  for (const std::string& rank_text : all_gather_text(group, text)) {
    lists.push_back(parse_values(rank_text, lists.size()));
  }
  TORCH_CHECK_VALUE(false, describe_difference(lists));
}

std::string first_failure(const ProcessGroupPtr& group, const std::function<void()>& body) {
  const std::vector<std::string> failures = all_gather_text(group, failure_of(body));
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) {
      const std::string failure = printable(failures[rank], kLongestFailure);  // Of a peer, which may send anything.
      return failures.size() == 1 ? failure : c10::str("rank ", rank, ": ", failure);
    }
  }
  return "";
}

void do_on_all_ranks(const ProcessGroupPtr& group, const std::string& prefix, const std::function<void()>& body) {
  constexpr int64_t kFailed = 1;
  constexpr int64_t kOutputFailed = 2;
  int64_t own = 0;
  const std::string failure = first_failure(group, [&] {
    own = kFailed;
    try {
      body();
    } catch (const OutputError&) {
      own = kOutputFailed;
      throw;
    }
    own = 0;
  });
  if (failure.empty()) {
    return;
  }
  const at::Tensor all = all_gather_values(group, at::full({1}, own, at::kLong)).flatten();
  const int64_t first = all[all.ne(0).nonzero().flatten()[0]].item<int64_t>();
  NARROWCAST_CHECK_OUTPUT(first != kOutputFailed, prefix, failure);
  TORCH_CHECK_VALUE(false, prefix, failure);
}

std::string from_rank_0(const ProcessGroupPtr& group, const std::string& text) {
  return all_gather_text(group, group->getRank() == 0 ? text : "").at(0);
}

}  // namespace narrowcast
