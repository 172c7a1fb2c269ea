#include "trainer/base/program/variable.h"

#include <absl/strings/str_cat.h>

#include <utility>

namespace narrowcast::program {
namespace {

constexpr int64_t kMostSeconds = std::chrono::milliseconds::max().count() / 1000;

}  // namespace

Variable variable(std::vector<std::string>& target) {
  return {.type = "list",
          .text = AbslUnparseFlag(PathList{target}),
          .set =
              [&target](const std::string& text, std::string& reason) {
                PathList list;
                const bool good = AbslParseFlag(text, &list, &reason);
                if (good) target = std::move(list.paths);
                return good;
              },
          .value = [&target] { return nlohmann::json(target); }};
}

Variable variable(std::chrono::milliseconds& target) {
  const auto seconds = [&target] { return std::chrono::duration_cast<std::chrono::seconds>(target).count(); };
  return {.type = type_name<int64_t>(),
          .text = absl::UnparseFlag(int64_t{seconds()}),
          .set =
              [&target](const std::string& text, std::string& reason) {
                const std::optional<int64_t> value = parsed<int64_t>(text, reason);
                const bool good = value && *value >= -kMostSeconds && *value <= kMostSeconds;
                if (good) target = std::chrono::seconds(*value);
                if (value && !good) reason = absl::StrCat("more than ", kMostSeconds, " seconds");
                return good;
              },
          .value = [seconds] { return nlohmann::json(int64_t{seconds()}); }};
}

Variable variable(std::map<std::string, int64_t>& target, const std::string& key) {
  return {.type = type_name<int64_t>(),
          .set =
              [&target, key](const std::string& text, std::string& reason) {
                const std::optional<int64_t> value = parsed<int64_t>(text, reason);
                if (value) target[key] = *value;
                return value.has_value();
              },
          .value =
              [&target, key] {
                const auto found = target.find(key);
                return found == target.end() ? nlohmann::json() : nlohmann::json(found->second);
              }};
}

}  // namespace narrowcast::program
