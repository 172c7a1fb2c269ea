#include "trainer/checkpoint/format/settings.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <vector>

namespace narrowcast::checkpoint {
namespace {

using nlohmann::json;

struct Difference {
  std::string name;
  std::string saved;
  std::string current;
};

std::string value_text(const json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    return "nothing";
  }
  return found->is_string() ? found->get<std::string>() : found->dump();
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
    const Difference difference = {name, value_text(saved, name), value_text(current, name)};
    if (difference.saved != difference.current) {
      found.push_back(difference);
    }
  }
  std::stable_partition(found.begin(), found.end(), [&](const Difference& difference) {
    return saved.contains(difference.name) && current.contains(difference.name);
  });
  return found;
}

}  // namespace

void check_settings(const json& saved, const json& current, const std::string& path) {
  for (const Difference& difference : differences(saved, current)) {
    TORCH_CHECK_VALUE(false, difference.name, ": is ", difference.current, ", but ", difference.saved,
                      " in the checkpoint ", path);
  }
}

std::string describe_changes(const json& saved, const json& current) {
  return absl::StrJoin(differences(saved, current), ", ", [](std::string* out, const Difference& difference) {
    absl::StrAppend(out, difference.name, " (", difference.current, ", was ", difference.saved, ")");
  });
}

}  // namespace narrowcast::checkpoint
