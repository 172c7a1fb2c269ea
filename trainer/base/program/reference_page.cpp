#include "trainer/base/program/reference_page.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "trainer/base/program/flag.h"

namespace narrowcast::program {
namespace {

// A cell of a table in Markdown, in which these characters have a meaning.
std::string cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "\\<"}, {"*", "\\*"}, {"\\", "\\\\"}});
}

std::string row(const std::vector<std::string>& cells) { return "| " + absl::StrJoin(cells, " | ") + " |\n"; }

std::string code(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

std::vector<std::string> cells_of(const Flag& flag) {
  const std::string values = flag.values.empty() ? flag.variable.type : flag.variable.type + ", " + flag.values;
  return {code("--" + flag.name), cell(values), code(flag.default_value), cell(flag.help)};
}

}  // namespace

std::string reference_page(const Description& description) {
  const std::map<std::string, Flag> flags = with_abseil_flags(description.flags);
  const bool resumes = std::ranges::any_of(flags, [](const auto& entry) { return !entry.second.at_resume.empty(); });
  std::vector<std::string> head = {"flag", "value", "default", "meaning"};
  if (resumes) {
    head.push_back("when it resumes");
  }
  std::string page = "# Flags of " + description.name + "\n\n`" + description.name +
                     " --help=markdown` prints this page. `--help` prints the same flags as text.\n";
  for (const FlagGroup& group : description.groups) {
    page += "\n## " + group.title + "\n\n" + row(head) + row(std::vector<std::string>(head.size(), "---"));
    for (const std::string& flag : group.flags) {
      std::vector<std::string> cells = cells_of(flags.at(flag));
      if (resumes) {
        cells.push_back(cell(flags.at(flag).at_resume));
      }
      page += row(cells);
    }
  }
  return page;
}

}  // namespace narrowcast::program
