#include "trainer/launcher/job/line_prefix.h"

#include <absl/strings/ascii.h>
#include <c10/util/Exception.h>

#include <string_view>

#include "ops/common/text.h"

namespace narrowcast::launcher {
namespace {

// A reference "NAME" or "{NAME}" at the beginning of a text.
struct Reference {
  size_t length = 0;  // of the whole reference; 0: none
  std::string name;
};

Reference reference_at(std::string_view text) {
  const bool in_braces = text.starts_with("{");
  const size_t begin = in_braces ? 1 : 0;
  size_t end = begin;
  while (end < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) {
    ++end;
  }
  const bool is_whole = end > begin && (!in_braces || text.substr(end).starts_with("}"));
  return is_whole ? Reference{end + begin, std::string(text.substr(begin, end - begin))} : Reference();
}

// Returns null if there is no variable of that name.
const std::string* variable(const LineVariables& variables, const std::string& name) {
  return name == "role_name"    ? &variables.role_name
         : name == "rank"       ? &variables.rank
         : name == "local_rank" ? &variables.local_rank
         : name == "hostname"   ? &variables.hostname
                                : nullptr;
}

}  // namespace

std::string expand_line_prefix(const std::string& flag, const std::string& text, const LineVariables& variables) {
  TORCH_CHECK_VALUE(text.find_first_of("\r\n") == std::string::npos, flag, "=", printable(text), ": must be one line");
  std::string expanded;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at + 1);
    if (text[at] != '$') {
      expanded += text[at++];
    } else if (rest.starts_with("$")) {
      expanded += '$';
      at += 2;
    } else {
      const Reference reference = reference_at(rest);
      const std::string* const value = variable(variables, reference.name);
      TORCH_CHECK_VALUE(value != nullptr, flag, "=", text, ": '$", rest.substr(0, reference.length),
                        "' is not a variable; write ${rank}, ${local_rank}, ${role_name} or ${hostname}, and $$ for a "
                        "dollar sign");
      expanded += *value;
      at += 1 + reference.length;
    }
  }
  return expanded;
}

}  // namespace narrowcast::launcher
