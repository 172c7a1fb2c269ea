// JSON that others wrote. Every text in JSON that the programs read is parsed here, but for safetensors' headers, which
// have a reader of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace narrowcast::files {

// A text beyond these limits is refused. Copying, comparing and writing a value takes stack for each level of nesting.
struct JsonLimits {
  int64_t depth = 64;                 // arrays and objects within each other
  int64_t bytes = int64_t{16} << 20;  // of the text
};

struct ParsedJson {
  nlohmann::json value;
  std::string problem;  // why there is no value, after the name of the text: "is no valid JSON at byte 7"; else empty
};

ParsedJson try_parse_json(std::string_view text, const JsonLimits& limits = {});

// A text that a rank of the job sent.
struct ListOfRank {
  std::string_view text;
  size_t rank = 0;
  std::string_view what;  // the list that it should be, for the message: "the files that it wrote"
};

// The JSON list of entries that are all as `is_entry` wants them. Throws c10::DistBackendError "rank 1 sent something
// other than the files that it wrote: '...'" for anything else.
nlohmann::json parse_list(const ListOfRank& list, bool (*is_entry)(const nlohmann::json&));

// Throws CorruptInputError with `name`, what it is that holds the text, and the problem.
nlohmann::json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});

// The value with each string that is not UTF-8, as a path may be, replaced by what messages show of it (printable in
// text.h: "caf\xe9"), whole. Keys stay as they are. JSON cannot hold other strings: dump() throws.
nlohmann::json with_utf8_strings(nlohmann::json value);

// What is wrong with parsed JSON of which a part was asked for, in words for users: "'round' is missing" or "a value
// must be number, but is string".
std::string problem_with(const nlohmann::json::exception& error);

}  // namespace narrowcast::files
