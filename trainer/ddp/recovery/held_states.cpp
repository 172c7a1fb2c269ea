#include "trainer/ddp/recovery/held_states.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include <narrowcast/errors.h>
#include "trainer/base/files/json.h"

namespace narrowcast::recovery {

HeldStates parse_held_states(const std::string& text, int64_t rank) {
  const std::string source = c10::str(kStep, ": the state of rank ", rank);
  HeldStates states;
  try {
    const nlohmann::json read = files::parse_json(text, source);
    states.why_unusable = read.at("why_unusable").get<std::string>();
    for (const nlohmann::json& state : read.at("states")) {
      const auto point = state.at(0).get<int64_t>();
      NARROWCAST_CHECK_INPUT(point >= 0, source, ": its point is ", point);
      states.held[point] = pieces::read_holding(state.at(1), source);
    }
  } catch (const nlohmann::json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, source, ": ", files::problem_with(error));
  }
  return states;
}

Inventory read_inventory(const std::string& text, size_t sources) {
  int64_t bytes = -1;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, bytes);
  NARROWCAST_CHECK_INPUT(number.ec == std::errc() && bytes >= 0 && number.ptr != end && *number.ptr == ' ', kStep,
                         ": the first source's inventory does not begin with a number of bytes");
  const files::SafetensorsHeader header =
      files::parse_safetensors_header(std::string_view(number.ptr + 1, end), bytes, kStep);
  const auto values = header.metadata.find(kValues);
  NARROWCAST_CHECK_INPUT(values != header.metadata.end(), kStep, ": the first source's inventory has no '", kValues,
                         "'");
  Inventory inventory = {.parts = {}, .values = values->second};
  std::vector<int64_t> load(sources);  // bytes that each source sends
  for (const auto& [name, entry] : header.tensors) {
    const size_t source =
        name.starts_with(kCommon) ? static_cast<size_t>(std::ranges::min_element(load) - load.begin()) : 0;
    load[source] += entry.end - entry.begin;
    inventory.parts.push_back({name, entry, source});
  }
  return inventory;
}

}  // namespace narrowcast::recovery
