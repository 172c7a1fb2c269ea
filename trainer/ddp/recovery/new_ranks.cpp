#include "trainer/ddp/recovery/new_ranks.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/json.h"

namespace narrowcast::recovery {
namespace {

// Before the hash of a rank's values.
constexpr const char* kNew = "new ";
constexpr const char* kAgreed = "agreed ";

// The first value in which a rank differs from one that has agreed. Empty if there is none.
std::string difference_from(const std::vector<NamedValue>& former, const std::vector<NamedValue>& own) {
  for (const std::vector<NamedValue>* const values : {&former, &own}) {
    for (const NamedValue& value : *values) {
      const auto has_it = [&](const NamedValue& other) { return other.name == value.name; };
      const auto before = std::ranges::find_if(former, has_it);
      const auto now = std::ranges::find_if(own, has_it);
      if (before == former.end() || now == own.end() || before->value != now->value) {
        return c10::str(value.name, ": this new process has ", now == own.end() ? "none" : in_quotes(now->value),
                        ", the ranks of the job have ", before == former.end() ? "none" : in_quotes(before->value));
      }
    }
  }
  return "";
}

std::string to_text(const std::vector<NamedValue>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const NamedValue& value : values) list.push_back({value.name, value.value});
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::vector<NamedValue> parse_named_values(const std::string& text, const std::string& source) {
  std::vector<NamedValue> values;
  try {
    for (const nlohmann::json& pair : files::parse_json(text, source)) {
      values.push_back({pair.at(0).get<std::string>(), pair.at(1).get<std::string>()});
    }
  } catch (const nlohmann::json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, source, ": ", files::problem_with(error));
  }
  return values;
}

// Values may be long. They are sent only if their hashes differ.
NewRanks check_new_ranks(const ProcessGroupPtr& group, Standing own, const std::string& what,
                         const std::vector<NamedValue>& values) {
  const std::string text = to_text(values);
  const std::string hash = std::to_string(fnv1a(text));
  const std::vector<std::string> received = all_gather_text(group, (own == Standing::kNew ? kNew : kAgreed) + hash);
  NewRanks found;
  std::optional<size_t> former;
  std::set<std::string> hashes;
  for (size_t rank = 0; rank < received.size(); ++rank) {
    hashes.insert(received[rank].substr(received[rank].find(' ') + 1));
    if (received[rank].starts_with(kNew)) {
      found.ranks.push_back(static_cast<int64_t>(rank));
    } else if (!former) {
      former = rank;
    }
  }
  if (!former) {
    check_equal_on_all_ranks(group, values);
  }
  if (!former || hashes.size() == 1) {
    return found;
  }
  const std::vector<std::string> texts = all_gather_text(group, text);
  if (own == Standing::kNew) {
    const std::string source = c10::str("the ", what, " of rank ", *former);
    found.misfit = difference_from(parse_named_values(texts[*former], source), values);
    if (!found.misfit.empty()) {
      return found;
    }
  }
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    TORCH_CHECK_WITH(DistBackendError, texts[rank] == texts[*former], "rank ", group->getRank(), ": rank ", rank,
                     " is new, and has another ", what);
  }
  return found;
}

}  // namespace narrowcast::recovery
