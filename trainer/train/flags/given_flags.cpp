#include "trainer/train/flags/given_flags.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "trainer/train/options/option_table.h"

namespace narrowcast {

void refuse(const Given& given, const std::vector<std::string>& flags, const std::string& reason) {
  for (const std::string& flag : flags) {
    TORCH_CHECK_VALUE(!given.has(flag), "--", flag, ": has no effect ", reason);
  }
}

void refuse_all_but(const Given& given, const std::vector<std::string>& used, const std::string& reason) {
  for (const options::Group group : options::all_groups()) {
    for (const std::string& flag : options::flags_of(group)) {
      if (group != options::Group::kPlace && std::ranges::find(used, flag) == used.end()) {
        refuse(given, {flag}, reason);
      }
    }
  }
}

}  // namespace narrowcast
