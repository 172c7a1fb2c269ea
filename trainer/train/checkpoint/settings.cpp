#include "trainer/train/checkpoint/settings.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <vector>

#include "trainer/base/files/text.h"

namespace narrowcast::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kLongestShown = 300;  // bytes of a name or a value in a message

struct Difference {
  std::string name;
  const json* saved;  // null: it is not there
  const json* current;
};

const json* find(const json& object, const std::string& name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// What a manifest says may be any text.
std::string text_of(const json& value) {
  const std::string text =
      value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace);
  return printable(text, kLongestShown);
}

bool differ(const json* saved, const json* current) {
  return saved == nullptr || current == nullptr ? saved != current : *saved != *current;
}

// First those that both have: another hook, say, has other options, too.
std::vector<Difference> differences(const json& saved, const json& current) {
  std::set<std::string> names;
  for (const json* const object : {&saved, &current}) {
    for (const auto& [name, value] : object->items()) {
      names.insert(name);
    }
  }
  std::vector<Difference> found;
  for (const std::string& name : names) {
    const Difference difference = {printable(name, kLongestShown), find(saved, name), find(current, name)};
    if (differ(difference.saved, difference.current)) {
      found.push_back(difference);
    }
  }
  std::stable_partition(found.begin(), found.end(), [](const Difference& difference) {
    return difference.saved != nullptr && difference.current != nullptr;
  });
  return found;
}

}  // namespace

void check_settings(const json& saved, const json& current, const std::string& path) {
  const std::vector<Difference> found = differences(saved, current);
  if (found.empty()) {
    return;
  }
  const Difference& first = found.front();
  TORCH_CHECK_VALUE(first.current != nullptr, first.name, ": this training has none, but it is ", text_of(*first.saved),
                    " in the checkpoint ", path);
  TORCH_CHECK_VALUE(first.saved != nullptr, first.name, ": is ", text_of(*first.current), ", but the checkpoint ", path,
                    " has none");
  TORCH_CHECK_VALUE(false, first.name, ": is ", text_of(*first.current), ", but ", text_of(*first.saved),
                    " in the checkpoint ", path);
}

std::string describe_changes(const json& saved, const json& current) {
  return absl::StrJoin(differences(saved, current), ", ", [](std::string* out, const Difference& difference) {
    absl::StrAppend(out, difference.name, " (", difference.current == nullptr ? "none" : text_of(*difference.current),
                    ", was ", difference.saved == nullptr ? "none" : text_of(*difference.saved), ")");
  });
}

}  // namespace narrowcast::checkpoint
