#include "trainer/base/files/json.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"

namespace narrowcast::files {
namespace {

using nlohmann::json;

constexpr size_t kLongestProblem = 300;  // bytes

struct TooDeep {};

json parse_within(std::string_view text, int64_t most_depth) {
  const auto check_depth = [most_depth](int depth, json::parse_event_t event, const json&) {
    const bool begins = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth >= most_depth) {
      throw TooDeep();
    }
    return true;
  };
  return json::parse(text, check_depth);
}

}  // namespace

ParsedJson try_parse_json(std::string_view text, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    return {nullptr, c10::str("has ", text.size(), " bytes of JSON, above the limit of ", limits.bytes)};
  }
  const size_t zero = text.find('\0');  // The library treats it as the end of the text.
  if (zero != std::string_view::npos) {
    return {nullptr, c10::str("is not valid JSON at byte ", zero + 1)};
  }
  try {
    return {parse_within(text, limits.depth), ""};
  } catch (const TooDeep&) {
    return {nullptr, c10::str("is JSON nested more than ", limits.depth, " deep")};
  } catch (const json::parse_error& error) {
    return {nullptr, c10::str("is not valid JSON at byte ", error.byte)};
  } catch (const json::exception&) {
    return {nullptr, "is not valid JSON: a number is too large"};
  }
}

json with_utf8_strings(json value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (decode_utf8(text).first_bad_byte.has_value()) {
      constexpr size_t kMostPerByte = 6;  // "\u202e"
      value = printable(text, kMostPerByte * text.size());
    }
  } else if (value.is_structured()) {
    for (json& element : value) element = with_utf8_strings(std::move(element));
  }
  return value;
}

json parse_list(const ListOfRank& list, bool (*is_entry)(const json&)) {
  json parsed = try_parse_json(list.text).value;
  TORCH_CHECK_WITH(DistBackendError, parsed.is_array() && std::all_of(parsed.begin(), parsed.end(), is_entry), "rank ",
                   list.rank, " sent an invalid list of ", list.what, ": ", in_quotes(list.text));
  return parsed;
}

json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
  ParsedJson parsed = try_parse_json(text, limits);
  NARROWCAST_CHECK_INPUT(parsed.problem.empty(), name, ": ", parsed.problem);
  return std::move(parsed.value);
}

// The library's texts are "[json.exception.out_of_range.403] key 'round' not found" and
// "[json.exception.type_error.302] type must be number, but is string".
std::string problem_with(const json::exception& error) {
  constexpr int kMissingKey = 403;
  constexpr std::string_view kType = "type ";
  std::string text = error.what();
  text.erase(0, text.find("] ") + 2);
  if (error.id == kMissingKey) {
    const size_t begin = text.find('\'');
    const size_t end = text.rfind('\'');
    return printable(text.substr(begin, end + 1 - begin), kLongestProblem) + " is missing";
  }
  if (text.starts_with(kType)) {
    text.replace(0, kType.size(), "a value ");
  }
  return printable(text, kLongestProblem);
}

}  // namespace narrowcast::files
