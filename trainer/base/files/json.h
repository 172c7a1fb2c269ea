// JSON from outside. Every JSON text that the programs read is parsed here, except headers of safetensors files, which
// have a separate reader.
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
  std::string problem;  // follows the text's name in errors: "is not valid JSON at byte 7"; empty with a value
};

ParsedJson try_parse_json(std::string_view text, const JsonLimits& limits = {});

// A text that a rank of the job sent.
struct ListOfRank {
  std::string_view text;
  size_t rank = 0;
  std::string_view what;  // the expected list, for the message: "the files that it wrote"
};

// Returns the JSON list, if `is_entry` accepts all its entries. Else throws c10::DistBackendError "rank 1 sent an
// invalid list of the files that it wrote: '...'".
nlohmann::json parse_list(const ListOfRank& list, bool (*is_entry)(const nlohmann::json&));

// Throws CorruptInputError with `name`, which describes the source of the text, and the problem.
nlohmann::json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits = {});

// Returns the value with each string that is not UTF-8 (a path may be such a string) replaced by its printable form
// (text.h: "caf\xe9"), without a limit on its length. Keys stay unchanged. For other strings dump() throws.
nlohmann::json with_utf8_strings(nlohmann::json value);

// The problem of parsed JSON from which a part was read, for users: "'round' is missing" or "a value must be number,
// but is string".
std::string problem_with(const nlohmann::json::exception& error);

}  // namespace narrowcast::files
