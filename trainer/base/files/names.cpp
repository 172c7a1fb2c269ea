#include "trainer/base/files/names.h"

#include <algorithm>
#include <cstddef>

#include "ops/common/text.h"

namespace narrowcast {
namespace {

constexpr size_t kNamed = 5;

}  // namespace

std::string describe_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text.append(i == 0 ? "" : ", ").append(in_quotes(names[i]));
  }
  return names.size() <= kNamed ? text : text + " and " + std::to_string(names.size() - kNamed) + " more";
}

}  // namespace narrowcast
