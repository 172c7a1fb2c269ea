#include "trainer/train/reporting/report.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/reporting/metrics.h"

namespace narrowcast::reporting {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

// The text between the tags of the page's data element.
std::string data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("</script>", at) - at);
}

void write_metrics(const std::string& path, int64_t steps) {
  Metrics metrics(path);
  metrics.on_start({{"hook", "int8"}});
  for (int64_t step = 1; step <= steps; ++step)
    metrics.on_step({.step = step, .loss = 1.0 / static_cast<double>(step)});
  metrics.on_evaluation({.step = steps, .loss = 0.5});
}

TEST(ReportPage, HoldsTheDocument) {
  const nlohmann::json document = {{"title", "a"}, {"benches", {{{"name", "b"}, {"results", {1.0 / 3, 7}}}}}};
  EXPECT_EQ(nlohmann::json::parse(data_of(report_page(document))), document);
  EXPECT_THAT(report_page(document), Not(HasSubstr("{{DATA}}")));
}

TEST(ReportPage, FetchesNothing) {
  for (const char* const reference : {"src=", "href=", "@import", "url(", "https:"}) {
    EXPECT_THAT(report_page({{"title", "a"}}), Not(HasSubstr(reference)));
  }
}

TEST(ReportPage, NoTextEndsTheScript) {
  const nlohmann::json document = {{"title", "</script><script>alert(1)</script><!-- \" ' & \\ \n"}};
  EXPECT_EQ(nlohmann::json::parse(data_of(report_page(document))), document);
  EXPECT_THAT(data_of(report_page(document)), Not(HasSubstr("<")));
  EXPECT_EQ(nlohmann::json::parse(data_of(report_page({{"title", "\xff"}})))["title"], "\xef\xbf\xbd") << "no UTF-8";
}

TEST(TrainingsDocument, HoldsTheMetrics) {
  const TemporaryFolder folder;
  write_metrics(folder.write("run/metrics.jsonl", ""), 3);
  const nlohmann::json document = trainings_document({folder / "run"});
  EXPECT_EQ(document["title"], "Training run");
  EXPECT_EQ(document["trainings"].size(), 1u);
  EXPECT_EQ(document["trainings"][0]["name"], "run");
  EXPECT_EQ(document["trainings"][0]["events"], nlohmann::json(read_metrics(folder / "run/metrics.jsonl")));
  EXPECT_EQ(document["trainings"][0]["events"].size(), 5u);
}

TEST(TrainingsDocument, NamesSeveral) {
  const TemporaryFolder folder;
  for (const char* const name : {"a/run", "b/run", "c"}) {
    write_metrics(folder.write(std::string(name) + "/metrics.jsonl", ""), 1);
  }
  const nlohmann::json document = trainings_document({folder / "a/run", folder / "b/run", folder / "c/metrics.jsonl"});
  EXPECT_EQ(document["title"], "3 trainings");
  EXPECT_EQ(document["trainings"][0]["name"], folder / "a/run") << "two have the name run";
  EXPECT_EQ(document["trainings"][1]["name"], folder / "b/run");
  EXPECT_EQ(document["trainings"][2]["name"], "c");
}

TEST(TrainingsDocument, ShowsSomeOfManyReports) {
  const TemporaryFolder folder;
  write_metrics(folder.write("metrics.jsonl", ""), 2 * kMostReportsShown + 1);
  const nlohmann::json events = trainings_document({folder.path()})["trainings"][0]["events"];
  const auto is_step = [](const nlohmann::json& line) { return line["event"] == "step"; };
  EXPECT_LE(std::ranges::count_if(events, is_step), kMostReportsShown);
  EXPECT_GT(std::ranges::count_if(events, is_step), kMostReportsShown / 2);
  EXPECT_EQ(events[1]["step"], 1);
  EXPECT_EQ(events[events.size() - 2]["step"], 2 * kMostReportsShown + 1) << "the last one";
  EXPECT_EQ(events.back()["event"], "evaluation");
}

TEST(TrainingsDocument, NamesWhatIsNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_message<c10::ValueError>([&] { trainings_document({folder / "none"}); }), HasSubstr("/none: "));
  EXPECT_THAT(error_message<c10::ValueError>([&] { trainings_document({folder.path()}); }),
              HasSubstr(folder / "metrics.jsonl"));
  EXPECT_EQ(error_message<CorruptInputError>([&] { trainings_document({folder.write("text", "no JSON")}); }),
            folder / "text" + ": is not a metrics.jsonl of narrowcast-train: it has no line of a training's start");
}

TEST(TrainingReport, IsWrittenAtCheckpoints) {
  const TemporaryFolder folder;
  write_metrics(folder.write("run/metrics.jsonl", ""), 2);
  TrainingReport report(folder / "page.html", folder / "run");
  report.on_step({.step = 1});
  EXPECT_FALSE(std::filesystem::exists(folder / "page.html"));
  report.on_checkpoint(CheckpointReport());
  EXPECT_EQ(files::read_file(folder / "page.html"), report_page(trainings_document({folder / "run"})));
}

TEST(TrainingReport, CannotBeWrittenLater) {
  const TemporaryFolder folder;
  write_metrics(folder.write("run/metrics.jsonl", ""), 2);
  EXPECT_THAT(error_message<OutputError>([&] { TrainingReport(folder / "none/page.html", folder / "run").write(); }),
              HasSubstr("none/page.html: cannot be written: "));
}

}  // namespace
}  // namespace narrowcast::reporting
