#include "trainer/launcher/flags/output_flags.h"

#include <absl/flags/flag.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include <narrowcast/worker_env.h>
#include "trainer/launcher/job/launch_plan.h"

namespace {

namespace launcher = narrowcast::launcher;

const launcher::LaunchRequest kOutputDefaults;

}  // namespace

ABSL_FLAG(bool, prefix, kOutputDefaults.prefix,
          "Show the workers' output line by line, with the rank before each line: \"[1]: text\". With --noprefix the "
          "workers write to the launcher's streams directly.");
ABSL_FLAG(
    std::string, log_line_prefix_template, kOutputDefaults.line_prefix,
    "The text before each of these lines, with the variables ${rank}, ${local_rank}, ${role_name} and ${hostname}. "
    "Default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, if it is set.");
ABSL_FLAG(std::string, log_dir, "",
          absl::StrCat("A folder for output files: ",
                       (launcher::worker_folder("DIR/RUN", "N", "RANK") / launcher::kOutputLog).string(), " and ",
                       launcher::kErrorLog,
                       ". Without --redirects and --tee all output goes there instead of being shown."));
ABSL_FLAG(std::string, redirects, "",
          "Which output goes to files instead of being shown: 0 none, 1 standard output, 2 standard error, 3 both, or "
          "a list by local rank such as 0:3,1:2. Default: 3 with --log_dir, else 0.");
ABSL_FLAG(std::string, tee, kOutputDefaults.tee,
          "Which output goes to files and is shown too, written like --redirects.");
ABSL_FLAG(std::string, local_ranks_filter, "", "Show only the output of these local ranks, e.g. 0,2.");
ABSL_FLAG(
    std::string, duplicate_stdout_filters, "",
    "Texts separated by commas; two commas stand for one within a text. Lines of teed standard output that contain "
    "one of the texts are also written to filtered_stdout.log, from all workers of the node.");
ABSL_FLAG(std::string, duplicate_stderr_filters, "", "The same for standard error, in filtered_stderr.log.");

namespace narrowcast::launcher {
namespace {

constexpr const char* kPrefixVariable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";  // torchrun's

void read_line_prefix(const program::CommandLine& line, LaunchRequest& wanted) {
  const bool shows_nothing = line.given("log_dir") && !line.given("redirects") && !line.given("tee");
  const bool is_given = line.given("log_line_prefix_template");
  TORCH_CHECK_VALUE(!is_given || (wanted.prefix && !shows_nothing), "--log_line_prefix_template has no effect with ",
                    shows_nothing ? "--log_dir alone: output in files is never prefixed" : "--noprefix");
  const std::string of_environment = text_or_empty(process_environment(), kPrefixVariable);
  const bool is_inherited = !is_given && !of_environment.empty();
  wanted.line_prefix = is_inherited ? of_environment : absl::GetFlag(FLAGS_log_line_prefix_template);
  expand_line_prefix(is_inherited ? kPrefixVariable : "--log_line_prefix_template", wanted.line_prefix, {});
}

// A flag and its value.
struct GivenFlag {
  std::string name;
  std::string value;
};

std::vector<std::string> read_filters(const program::CommandLine& line, const GivenFlag& flag) {
  return line.given(flag.name) ? parse_filters("--" + flag.name, flag.value) : std::vector<std::string>();
}

}  // namespace

const std::vector<std::string>& output_flags() {
  static const std::vector<std::string> names = {"prefix",
                                                 "log_line_prefix_template",
                                                 "log_dir",
                                                 "redirects",
                                                 "tee",
                                                 "local_ranks_filter",
                                                 "duplicate_stdout_filters",
                                                 "duplicate_stderr_filters"};
  return names;
}

void read_output_flags(const program::CommandLine& line, LaunchRequest& wanted) {
  wanted.log_dir = absl::GetFlag(FLAGS_log_dir);
  TORCH_CHECK_VALUE(!line.given("log_dir") || !wanted.log_dir.empty(), "--log_dir=: must name a folder");
  const bool chosen = line.given("redirects") || line.given("tee");
  const bool all_to_files = line.given("log_dir") && !chosen;
  TORCH_CHECK_VALUE(!all_to_files || !line.given("prefix"),
                    "--prefix and --log_dir exclude each other: output in files is never prefixed");
  TORCH_CHECK_VALUE(!all_to_files || !line.given("local_ranks_filter"),
                    "--local_ranks_filter has no effect with --log_dir alone, which shows no output; add --tee");
  wanted.redirects = line.given("redirects") ? absl::GetFlag(FLAGS_redirects) : all_to_files ? "3" : "0";
  wanted.tee = absl::GetFlag(FLAGS_tee);
  wanted.local_ranks_filter = absl::GetFlag(FLAGS_local_ranks_filter);
  TORCH_CHECK_VALUE(!line.given("local_ranks_filter") || !wanted.local_ranks_filter.empty(),
                    "--local_ranks_filter=: must name at least one local rank");
  wanted.prefix = absl::GetFlag(FLAGS_prefix);
  read_line_prefix(line, wanted);
  wanted.output_filters =
      read_filters(line, {"duplicate_stdout_filters", absl::GetFlag(FLAGS_duplicate_stdout_filters)});
  wanted.error_filters =
      read_filters(line, {"duplicate_stderr_filters", absl::GetFlag(FLAGS_duplicate_stderr_filters)});
}

}  // namespace narrowcast::launcher
