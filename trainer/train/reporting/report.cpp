#include "trainer/train/reporting/report.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/train/files/file_io.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::reporting {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPlaceOfData = "{{DATA}}";

// Escapes the document, so that no text in it can end the page's element or open a comment.
std::string script_data(const json& document) {
  std::string text;
  for (const char c : document.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace)) {
    text += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return text;
}

std::string metrics_of(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? (fs::path(path) / kMetricsFile).string() : path;
}

std::string folder_name(const std::string& path) {
  std::error_code error;  // A missing path is reported when it is read.
  return fs::weakly_canonical(metrics_of(path), error).parent_path().filename();
}

// Every k-th line of each event, and the last, so that at most kMostReportsShown are left.
json thinned(std::vector<json> lines) {
  std::map<json, int64_t> count;
  for (const json& line : lines) {
    ++count[line.value("event", json())];
  }
  std::map<json, int64_t> index;
  json kept = json::array();
  for (json& line : lines) {
    const json event = line.value("event", json());
    const int64_t every = (count[event] + kMostReportsShown - 2) / (kMostReportsShown - 1);
    const int64_t at = index[event]++;
    if (at % every == 0 || at + 1 == count[event]) {
      kept.push_back(std::move(line));
    }
  }
  return kept;
}

json events_of(const std::string& path) {
  std::vector<json> lines = read_metrics(metrics_of(path));
  const auto is_start = [](const json& line) { return line.value("event", json()) == "start"; };
  NARROWCAST_CHECK_INPUT(std::ranges::any_of(lines, is_start), metrics_of(path),
                         ": is not a metrics.jsonl of narrowcast-train: it has no line of a training's start");
  return thinned(std::move(lines));
}

std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::map<std::string, int64_t> count;
  for (const std::string& path : paths) {
    ++count[folder_name(path)];
  }
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    const std::string name = folder_name(path);
    names.push_back(name.empty() || count[name] > 1 ? path : name);
  }
  return names;
}

}  // namespace

std::string report_page(const nlohmann::json& document) {
  const std::string_view page = kReportPage;
  const size_t place = page.find(kPlaceOfData);
  return std::string(page.substr(0, place)) + script_data(document) +
         std::string(page.substr(place + kPlaceOfData.size()));
}

void check_page_name(const std::string& path) {
  TORCH_CHECK_VALUE(path.ends_with(".html"),
                    "report: must be a page named NAME.html, because an existing file is replaced, but is ", path);
}

void write_report(const std::string& path, const nlohmann::json& document) {
  try {
    files::AtomicFile file(path);
    file.write(report_page(document));
    file.commit();
  } catch (const c10::ValueError& failure) {  // The path was a valid place for a file when the program began.
    NARROWCAST_CHECK_OUTPUT(false, failure.what_without_backtrace());
  }
}

nlohmann::json trainings_document(const std::vector<std::string>& paths) {
  const std::vector<std::string> names = names_of(paths);
  json trainings = json::array();
  for (size_t i = 0; i < paths.size(); ++i) {
    trainings.push_back({{"name", names[i]}, {"events", events_of(paths[i])}});
  }
  const std::string title = paths.size() == 1 ? "Training " + names[0] : std::to_string(paths.size()) + " trainings";
  return {{"title", title}, {"trainings", trainings}};
}

TrainingReport::TrainingReport(std::string path, std::string folder)
    : path_(std::move(path)), folder_(std::move(folder)) {}

void TrainingReport::write() const { write_report(path_, trainings_document({folder_})); }

}  // namespace narrowcast::reporting
